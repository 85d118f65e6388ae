"""Candidates of an evaluation, policies and baselines, and their answers."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from branchwise.agent import protocol_of
from branchwise.base import comparable, digest_of
from branchwise.engines import Capabilities, Engine, NoCallEngine, model_digest
from branchwise.evaluation import (
    BASELINES,
    Answerer,
    Begin,
    Evaluated,
    Material,
    PolicyUnderTest,
    fitting_questions,
)
from branchwise.runs import (
    Gate,
    Prepared,
    Progress,
    Recipe,
    agent_with_protocol,
    answer_settings,
    attempt_each,
    data_settings,
)
from branchwise.sources import Data, load_split
from branchwise.storage import Ledger
from branchwise.types import Question


@dataclass(frozen=True)
class Candidate:
    """A policy or a baseline, with its settings.

    Attributes:
        policy: Its model, protocol and temperature.
        questions: Its questions. Unanswerable ones are skipped unless the protocol can refuse.
        deciding: Settings that affect its answers, apart from the evaluation's own.
        asks_model: False if `begin` returns the answer.
    """

    name: str
    policy: PolicyUnderTest
    questions: tuple[Question, ...]
    deciding: Mapping[str, Any] = field(compare=False)
    begin: Begin | None = None
    path: str = "eval"
    asks_model: bool = True


def policy_candidates(prepared: Prepared) -> Iterator[Candidate]:
    """Yields the policies of the evaluation."""
    recipe, questions = prepared.recipe, prepared.data.questions
    for name, policy in recipe.policies_under_test(prepared.context.run.name).items():
        yield Candidate(name, policy, questions, _deciding(policy, recipe))


def baseline_candidates(prepared: Prepared) -> Iterator[Candidate]:
    """Yields the baselines of the evaluation.

    Raises:
        ConfigError: If the questions of the split `train`, or the model, cannot be read.
    """
    recipe, data = prepared.recipe, prepared.data
    reader = recipe.reader(prepared.context.run.name)
    material = Material(
        {passage.id: passage for passage in data.passages},
        prepared.retriever,
        recipe.retrieval.top_k,
        lambda: _other_questions(recipe, data),
    )
    for name in recipe.evaluation.baselines:
        baseline = BASELINES[name](material)
        questions = tuple(filter(baseline.can_be_asked, data.questions))
        if left_out := len(data.questions) - len(questions):
            prepared.context.log(f"{name}: {left_out} questions left out, {baseline.left_out}")
        deciding = dict(baseline.deciding)
        if origin := BASELINES.origin(name):
            deciding["baseline_plugin"] = origin
        agent = agent_with_protocol(reader.agent, {"protocol": "reading"})
        if baseline.asks_model:
            deciding |= _deciding(reader, recipe)
            deciding["prompt_hash"] = protocol_of(agent).prompt_hash
        yield Candidate(
            name,
            replace(reader, agent=agent),
            questions,
            deciding,
            baseline.begin,
            f"eval/{name}",
            baseline.asks_model,
        )


def _deciding(policy: PolicyUnderTest, recipe: Recipe) -> dict[str, Any]:
    """Returns a candidate's model, and those of its settings that are not the recipe's."""
    usual, settings = (answer_settings(p, recipe) for p in (recipe.usual_policy, policy))
    differing = {name: value for name, value in settings.items() if value != usual[name]}
    return {"model": policy.model.model, "digest": model_digest(policy.model), **differing}


def _other_questions(recipe: Recipe, data: Data) -> Iterator[Question]:
    evaluated = {comparable(question.question) for question in data.questions}
    has_other_set = recipe.evaluation.set is not None or recipe.evaluation.mix
    settings = recipe.data if has_other_set else data_settings(recipe)
    trained = load_split(settings, "train", recipe.seed)
    return (q for q in trained if comparable(q.question) not in evaluated)


@dataclass(frozen=True)
class PolicyEvaluation:
    """Data, ledger and limits that all candidates share."""

    prepared: Prepared
    ledger: Ledger
    gate: Gate

    def answers(self, candidates: Iterable[Candidate]) -> Iterator[tuple[str, Evaluated]]:
        """Yields each candidate's answers until the gate closes.

        Consecutive candidates with the same model share an engine.
        """
        for _, group in groupby(candidates, key=lambda candidate: candidate.policy.model):
            with self.gate.listening():
                results = asyncio.run(self._evaluate_group(list(group)))
            for name, result in results.items():
                for reason, count in result.skipped.items():
                    self.prepared.context.log(f"{name}: {count} questions are left out, {reason}")
                yield name, result

    async def _evaluate_group(self, group: list[Candidate]) -> dict[str, Evaluated]:
        """Evaluates the candidates of one model; stops after one that a limit stopped."""
        results = dict[str, Evaluated]()
        async with AsyncExitStack() as stack:
            model: Engine | None = None
            if any(candidate.asks_model for candidate in group):
                settings = group[0].policy.model
                opened = self.prepared.open_engine(settings, self.ledger, self.gate)
                model = await stack.enter_async_context(opened)
            for candidate in group:
                engine = model if candidate.asks_model and model else _without_calls(candidate)
                results[candidate.name] = await self._evaluate(candidate, engine)
                if results[candidate.name].pending:
                    break
        return results

    async def _evaluate(self, candidate: Candidate, engine: Engine) -> Evaluated:
        recipe, policy = self.prepared.recipe, candidate.policy
        answerer = Answerer(
            self.prepared.environment(engine, policy.protocol),
            candidate.name,
            policy.sampling,
            begin=candidate.begin,
            path=candidate.path,
            draw=recipe.evaluation.draw,
        )
        questions, skipped = fitting_questions(candidate.questions, policy.protocol)
        progress = Progress(f"eval {candidate.name}", len(questions), spent=self.ledger.totals)
        attempts = attempt_each(
            self.gate.admit(range(len(questions))),
            lambda place: answerer.answer(questions[place]),
            recipe.limits.questions_in_flight(policy.model),
            progress,
        )
        async with progress.shown(self.prepared.context.console):
            results = {place: result async for place, result in attempts}
        in_order = [(questions[place], results[place]) for place in sorted(results)]
        return Evaluated.of(answerer, in_order, skipped, pending=len(questions) - len(results))


def _without_calls(candidate: Candidate) -> Engine:
    """Returns an engine that is never called, for a candidate whose questions start answered."""
    deciding = json.dumps(candidate.deciding, sort_keys=True)
    return NoCallEngine(candidate.name, digest_of(candidate.name, deciding), Capabilities())
