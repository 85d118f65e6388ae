"""Evaluates every policy and every baseline of an evaluation."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import groupby

from base.text import digest_of
from engines.recorded import RecordedEngine
from engines.sampling import Capabilities, Engine
from evaluation.run import Evaluated
from evaluation.run import evaluate as answer_all
from retrieval.interface import Retriever
from runs.evaluation.candidates import Candidate
from runs.factories import environment_for, open_engine, sampling_for
from runs.progress import Progress
from runs.stage import Gate, StageContext
from storage.ledger import Ledger
from storage.records import Failure, Prediction


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
                engine = model if one.asks_model and model else _nobody(one)
                answered[one.name] = await self._ask(one, engine)
                if answered[one.name].pending:
                    break
        return answered

    async def _ask(self, candidate: Candidate, engine: Engine) -> Evaluated:
        recipe = candidate.recipe
        progress = Progress(
            f"eval {candidate.name}", len(candidate.questions), spent=self.ledger.totals
        )

        def start() -> None:
            progress.in_flight += 1

        def done(row: Prediction | Failure | None) -> None:
            progress.in_flight -= 1
            progress.done += row is not None
            progress.failed += isinstance(row, Failure)

        async with progress.shown(self.context.console):
            return await answer_all(
                candidate.questions,
                environment_for(recipe, engine, self.retriever),
                policy=candidate.name,
                sampling=sampling_for(recipe.policy, recipe.evaluation.temperature),
                begin=candidate.begin,
                path=candidate.path,
                draw=recipe.evaluation.draw,
                max_in_flight=recipe.questions_in_flight,
                admit=lambda: not self.gate.closed(),
                on_start=start,
                on_done=done,
            )


def _nobody(candidate: Candidate) -> Engine:
    """Returns an engine that is never called, for a candidate whose questions start answered."""
    deciding = json.dumps(candidate.deciding, sort_keys=True)
    return RecordedEngine(candidate.name, digest_of(candidate.name, deciding), Capabilities())
