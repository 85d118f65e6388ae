"""Candidates of an evaluation, policies and baselines, and their answers."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from branchwise.agent import protocol_of
from branchwise.base import ConfigError, Log, digest_of
from branchwise.engines import Capabilities, Engine, NoCallEngine
from branchwise.evaluation import BASELINES, Answering, Begin, Evaluated, Material, askable
from branchwise.retrieval import Retriever
from branchwise.runs import (
    Gate,
    Progress,
    Recipe,
    StageContext,
    agent_with_protocol,
    answering,
    attempt_each,
    data_settings,
    environment_for,
    failed_checks,
    model_digest,
    model_files,
    open_engine,
    sampling_for,
)
from branchwise.sources import Data, folded_question, load_split
from branchwise.storage import Ledger
from branchwise.types import Question


@dataclass(frozen=True)
class Candidate:
    """A policy or a baseline, with its settings.

    Attributes:
        recipe: Recipe with the candidate's `policy`, `agent` and `evaluation.temperature`.
        questions: Its questions. Unanswerable ones are skipped unless the protocol can refuse.
        deciding: Settings that affect its answers, apart from the evaluation's own.
        asks_model: False if `begin` returns the answer.
    """

    name: str
    recipe: Recipe
    questions: tuple[Question, ...]
    deciding: Mapping[str, Any] = field(compare=False)
    begin: Begin | None = None
    path: str = "eval"
    asks_model: bool = True


def policies_of(recipe: Recipe, run: Path) -> dict[str, Recipe]:
    """Returns the recipe of every policy by name (see `Recipe.policy_recipes`).

    Raises:
        ConfigError: If weights of policies or baselines are missing or damaged.
    """
    models = recipe.evaluated_models(run.name)
    checks = (check for item in models.items() for check in model_files(*item))
    if missing := list(failed_checks(checks)):
        raise ConfigError("\n".join(missing))
    return recipe.policy_recipes(run.name)


def policy_candidate(name: str, policy: Recipe, recipe: Recipe, data: Data) -> Candidate:
    """Returns a policy of the evaluation as a candidate."""
    return Candidate(name, policy, data.questions, _deciding(policy, recipe))


def baseline_candidates(
    recipe: Recipe, run: Path, data: Data, retriever: Retriever, log: Log
) -> Iterator[Candidate]:
    """Yields the baselines of the evaluation.

    Raises:
        ConfigError: If the questions of the split `train`, or the model, cannot be read.
    """
    reader = recipe.reader_recipe(run.name)
    material = Material(
        {passage.id: passage for passage in data.passages},
        retriever,
        recipe.retrieval.top_k,
        lambda: _others(recipe, data),
    )
    for name in recipe.evaluation.baselines:
        baseline = BASELINES[name](material)
        questions = tuple(filter(baseline.can_be_asked, data.questions))
        if left_out := len(data.questions) - len(questions):
            log(f"{name}: {left_out} questions left out, {baseline.left_out}")
        deciding = dict(baseline.deciding)
        if origin := BASELINES.origin(name):
            deciding["baseline_plugin"] = origin
        agent = agent_with_protocol(reader.agent, {"protocol": "reading"})
        if baseline.asks_model:
            deciding |= _deciding(reader, recipe)
            deciding["prompt_hash"] = protocol_of(agent).prompt_hash
        yield Candidate(
            name,
            reader.model_copy(update={"agent": agent}),
            questions,
            deciding,
            baseline.begin,
            f"eval/{name}",
            baseline.asks_model,
        )


def _deciding(policy: Recipe, recipe: Recipe) -> dict[str, Any]:
    """Returns a candidate's model, and those of its settings that are not the recipe's."""
    common, model = answering(recipe), policy.policy
    differing = {key: value for key, value in answering(policy).items() if value != common[key]}
    return {"model": model.model, "digest": model_digest(model, policy), **differing}


def _others(recipe: Recipe, data: Data) -> Iterator[Question]:
    evaluated = {folded_question(question.question) for question in data.questions}
    has_other_set = recipe.evaluation.set is not None or recipe.evaluation.mix
    settings = recipe.data if has_other_set else data_settings(recipe)
    known = load_split(settings, "train", recipe.seed)
    return (q for q in known if folded_question(q.question) not in evaluated)


@dataclass(frozen=True)
class PolicyEvaluation:
    """Retriever, ledger and limits that all candidates share."""

    context: StageContext
    retriever: Retriever
    ledger: Ledger
    gate: Gate

    def answers(self, candidates: Iterable[Candidate]) -> Iterator[tuple[str, Evaluated]]:
        """Yields each candidate's answers until the gate closes.

        Consecutive candidates with the same model share an engine.
        """
        for _, group in groupby(candidates, key=lambda candidate: candidate.recipe.policy):
            with self.gate.listening():
                results = asyncio.run(self._evaluate_group(list(group)))
            for name, result in results.items():
                for why, count in result.skipped.items():
                    self.context.log(f"{name}: {count} questions are left out, {why}")
                yield name, result

    async def _evaluate_group(self, group: list[Candidate]) -> dict[str, Evaluated]:
        """Evaluates the candidates of one model; stops after one that a limit stopped."""
        recipe, results = group[0].recipe, dict[str, Evaluated]()
        async with AsyncExitStack() as stack:
            model: Engine | None = None
            if any(candidate.asks_model for candidate in group):
                opened = open_engine(
                    recipe.policy, recipe, self.ledger, self.gate.check, self.context.log
                )
                model = await stack.enter_async_context(opened)
            for candidate in group:
                engine = model if candidate.asks_model and model else _without_calls(candidate)
                results[candidate.name] = await self._evaluate(candidate, engine)
                if results[candidate.name].pending:
                    break
        return results

    async def _evaluate(self, candidate: Candidate, engine: Engine) -> Evaluated:
        recipe = candidate.recipe
        answering = Answering(
            environment_for(recipe, engine, self.retriever),
            candidate.name,
            sampling_for(recipe.policy, recipe.evaluation.temperature),
            begin=candidate.begin,
            path=candidate.path,
            draw=recipe.evaluation.draw,
        )
        questions, skipped = askable(candidate.questions, answering.environment.protocol)
        progress = Progress(f"eval {candidate.name}", len(questions), spent=self.ledger.totals)
        attempts = attempt_each(
            self.gate.admit(range(len(questions))),
            lambda place: answering.answer(questions[place]),
            recipe.questions_in_flight,
            progress,
        )
        async with progress.shown(self.context.console):
            results = {place: result async for place, result in attempts}
        in_order = [(questions[place], results[place]) for place in sorted(results)]
        return Evaluated.of(answering, in_order, skipped, pending=len(questions) - len(results))


def _without_calls(candidate: Candidate) -> Engine:
    """Returns an engine that is never called, for a candidate whose questions start answered."""
    deciding = json.dumps(candidate.deciding, sort_keys=True)
    return NoCallEngine(candidate.name, digest_of(candidate.name, deciding), Capabilities())
