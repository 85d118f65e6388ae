"""An examination: the questions that every policy and every baseline is asked alike."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from agent.environment import Environment
from engines.ledgered import LedgeredEngine
from engines.settings import ModelSettings
from evaluation.run import Begin, Evaluated, from_question
from evaluation.run import evaluate as answer_all
from retrieval.interface import Retriever
from runs.assemble import environment_for, open_engine, sampling_for
from runs.folder import Run
from runs.progress import Progress
from runs.stage import Gate, Invocation
from sources.load import Data
from storage.ledger import Ledger
from storage.records import Failure, Prediction, Question


@dataclass(frozen=True)
class PolicyEvaluation:
    """What every policy is given: the same questions, corpus, ledger and limits."""

    call: Invocation
    run: Run
    data: Data
    retriever: Retriever
    ledger: Ledger
    gate: Gate

    def take(self, name: str, model: str) -> Evaluated:
        """All answers of one policy, as far as the gate lets the questions through."""
        with self.gate.listening():
            answered = asyncio.run(self._answered(name, model))
        self.tell_skipped(name, answered)
        return answered

    def tell_skipped(self, name: str, answered: Evaluated) -> None:
        """Say which questions were not asked."""
        if answered.skipped:
            self.call.say(f"{name}: {answered.skipped} unanswerable questions skipped (no refusal)")

    async def _answered(self, name: str, model: str) -> Evaluated:
        settings = self.run.recipe.policy.model_copy(update={"model": model})
        async with self.opened(settings) as engine:
            environment = environment_for(self.run.recipe, engine, self.retriever)
            return await self.asked(name, settings, environment, self.data.questions)

    def opened(self, model: ModelSettings) -> AbstractAsyncContextManager[LedgeredEngine]:
        """The model behind the run's ledger, as long as the gate is open."""
        recipe = self.run.recipe
        return open_engine(model, recipe, self.ledger, self.gate.check, self.call.say)

    async def asked(
        self,
        name: str,
        model: ModelSettings,
        environment: Environment,
        questions: Sequence[Question],
        *,
        begin: Begin = from_question,
        path: str = "eval",
    ) -> Evaluated:
        """Ask the questions under the recipe's settings; see `evaluation.run.evaluate`."""
        recipe = self.run.recipe
        progress = Progress(f"eval {name}", len(questions), spent=self.ledger.totals)

        def start() -> None:
            progress.in_flight += 1

        def done(row: Prediction | Failure | None) -> None:
            progress.in_flight -= 1
            progress.done += row is not None
            progress.failed += isinstance(row, Failure)

        async with progress.shown(self.call.console):
            return await answer_all(
                questions,
                environment,
                policy=name,
                sampling=sampling_for(model, recipe.evaluation.temperature),
                begin=begin,
                path=path,
                draw=recipe.evaluation.draw,
                max_in_flight=recipe.questions_in_flight,
                admit=lambda: not self.gate.closed(),
                on_start=start,
                on_done=done,
            )
