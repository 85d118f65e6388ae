"""Candidates of an evaluation, policies and baselines, and their answers."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from agent.protocols import protocol_of
from base.errors import BranchwiseError, ConfigError
from base.text import Log, digest_of
from engines.ledgered import NoCallEngine
from engines.sampling import Capabilities, Engine
from evaluation.baselines import BASELINES, Material
from evaluation.run import Answering, Begin, Evaluated, askable
from retrieval.interface import Retriever
from runs.evaluation.question_set import answering, data_settings
from runs.factories import environment_for, open_engine, sampling_for
from runs.inputs import model_digest
from runs.preflight import model_files, problems
from runs.progress import Progress, attempt_each
from runs.recipe import Recipe
from runs.stage import Gate, StageContext
from sources.load import Data, load_split
from sources.splits import folded_question
from storage.ledger import Ledger
from storage.records import Prediction, Question


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
    if missing := list(problems(checks)):
        raise ConfigError("\n".join(missing))
    return recipe.policy_recipes(run.name)


def policy_candidates(
    recipe: Recipe, policies: Mapping[str, Recipe], data: Data
) -> Iterator[Candidate]:
    """Yields the policies of the evaluation."""
    for name, one in policies.items():
        yield Candidate(name, one, data.questions, _deciding(one, recipe))


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
        agent = reader.agent.model_copy(update={"protocol": "reading"})
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


def _deciding(one: Recipe, recipe: Recipe) -> dict[str, Any]:
    """Returns a candidate's model, and those of its settings that are not the recipe's."""
    common = answering(recipe)
    differing = {key: value for key, value in answering(one).items() if value != common[key]}
    return {"model": one.policy.model, "digest": model_digest(one.policy, one), **differing}


def _others(recipe: Recipe, data: Data) -> Iterator[Question]:
    asked = {folded_question(question.question) for question in data.questions}
    own_set = recipe.evaluation.set is not None or recipe.evaluation.mix
    settings = recipe.data if own_set else data_settings(recipe)
    known = load_split(settings, "train", recipe.seed)
    return (q for q in known if folded_question(q.question) not in asked)


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
        for _, group in groupby(candidates, key=lambda one: one.recipe.policy):
            with self.gate.listening():
                answered = asyncio.run(self._ask_all(list(group)))
            for name, one in answered.items():
                for why, count in one.skipped.items():
                    self.context.log(f"{name}: {count} questions are left out, {why}")
                yield name, one

    async def _ask_all(self, group: list[Candidate]) -> dict[str, Evaluated]:
        """Evaluates the candidates of one model; stops after one that a limit stopped."""
        recipe, answered = group[0].recipe, dict[str, Evaluated]()
        async with AsyncExitStack() as stack:
            model: Engine | None = None
            if any(one.asks_model for one in group):
                opened = open_engine(
                    recipe.policy, recipe, self.ledger, self.gate.check, self.context.log
                )
                model = await stack.enter_async_context(opened)
            for one in group:
                engine = model if one.asks_model and model else _engine_without_calls(one)
                answered[one.name] = await self._ask(one, engine)
                if answered[one.name].pending:
                    break
        return answered

    async def _ask(self, candidate: Candidate, engine: Engine) -> Evaluated:
        recipe = candidate.recipe
        answering = Answering(
            environment_for(recipe, engine, self.retriever),
            candidate.name,
            sampling_for(recipe.policy, recipe.evaluation.temperature),
            begin=candidate.begin,
            path=candidate.path,
            draw=recipe.evaluation.draw,
        )
        asked, skipped = askable(candidate.questions, answering.environment.protocol)
        progress = Progress(f"eval {candidate.name}", len(asked), spent=self.ledger.totals)
        results: dict[int, Prediction | BranchwiseError] = {}
        async with progress.shown(self.context.console):
            async for place, found in attempt_each(
                self.gate.admit(range(len(asked))),
                lambda place: answering.answer(asked[place]),
                recipe.questions_in_flight,
                progress,
            ):
                results[place] = found
        in_order = [(asked[place], results[place]) for place in sorted(results)]
        return Evaluated.of(answering, in_order, skipped, pending=len(asked) - len(results))


def _engine_without_calls(candidate: Candidate) -> Engine:
    """Returns an engine that is never called, for a candidate whose questions start answered."""
    deciding = json.dumps(candidate.deciding, sort_keys=True)
    return NoCallEngine(candidate.name, digest_of(candidate.name, deciding), Capabilities())
