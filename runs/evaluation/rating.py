"""Rates questions by difficulty: rolls each out until its first right answer.

Source: R1-Searcher section 2.1. Rollouts are draws in the run's ledger, so a stopped rating
resumes and gives the same labels.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agent.concurrent_map import map_concurrently
from agent.environment import Environment
from analysis.difficulty import difficulty_of
from base.errors import EndpointError, RetrievalError
from base.text import digest_of
from retrieval.interface import Retriever
from rewards.outcome import AnswerScores
from runs.evaluation.question_set import answering
from runs.factories import environment_for, open_engine, sampling_for
from runs.inputs import model_digest, questions_digest
from runs.progress import Progress
from runs.recipe import Recipe
from runs.stage import Gate, StageContext
from storage.ledger import Ledger
from storage.records import Difficulty, Failure, Question

PATH = "select/root"
"""Ledger path of the rollouts, distinct from trees and evaluations."""


async def rate_questions(
    context: StageContext,
    rater: Recipe,
    pending: Sequence[Question],
    retriever: Retriever,
    ledger: Ledger,
    gate: Gate,
    progress: Progress,
) -> list[Difficulty | Failure]:
    """Rates questions until the gate closes.

    Args:
        context: Its console shows the progress.
        rater: The recipe with the rater as its policy (`Recipe.rater_recipe`).

    Raises:
        EndpointError: If a fault is fatal; a fault of a single question becomes a `Failure`.
    """

    async def work(question: Question) -> Difficulty | Failure:
        progress.in_flight += 1
        try:
            row = await rating.rate(question)
        finally:
            progress.in_flight -= 1
        progress.done += 1
        progress.failed += isinstance(row, Failure)
        return row

    async with (
        open_engine(rater.policy, rater, ledger, gate.check, context.log) as engine,
        progress.shown(context.console),
    ):
        environment = environment_for(rater, engine, retriever)
        rating = _Rating(rater, environment, deciding_digest(rater, retriever))
        rated = map_concurrently(gate.admit(pending), work, rater.questions_in_flight)
        return [row async for row in rated]


def deciding_digest(rater: Recipe, retriever: Retriever) -> str:
    """Returns the hash of all settings that affect a rater's rollouts."""
    deciding = {
        **rater.model_dump(mode="json", include={"seed", "retrieval"}),
        **answering(rater),
        "model": model_digest(rater.policy, rater),
        "index": retriever.digest,
        "rollouts": rater.difficulty.rollouts,
    }
    return digest_of(json.dumps(deciding, sort_keys=True))


def row_digest(deciding: str, question: Question) -> str:
    """Returns the `config_digest` of a question's row."""
    return digest_of(deciding, questions_digest([question]))[:12]


@dataclass(frozen=True)
class _Rating:
    """Settings that all ratings share."""

    recipe: Recipe
    environment: Environment
    deciding: str

    async def rate(self, question: Question) -> Difficulty | Failure:
        """Returns the row of one question; a fault of this question alone becomes a `Failure`."""
        try:
            return await self._row(question)
        except (EndpointError, RetrievalError) as error:
            if isinstance(error, EndpointError) and error.fatal:
                raise
            return Failure.of(question.id, "select", error)

    async def _row(self, question: Question) -> Difficulty:
        recipe, environment, settings = self.recipe, self.environment, self.recipe.difficulty
        sampling = sampling_for(recipe.policy, recipe.evaluation.temperature)
        root, tokens, first = await environment.root(question), 0, None
        for draw in range(settings.rollouts):
            rollout = await environment.trajectory(
                root, sampling, question_id=question.id, path=PATH, draw=draw
            )
            tokens += rollout.usage.output_tokens
            if AnswerScores.of(rollout.state.answer, question.answers).cover_em:
                first = draw + 1
                break
        return Difficulty(
            question_id=question.id,
            source=question.source,
            label=difficulty_of(first, settings.easy, settings.medium),
            rollouts=first or settings.rollouts,
            first_success=first,
            seed=environment.seed,
            output_tokens=tokens,
            policy_digest=environment.engine.digest,
            config_digest=row_digest(self.deciding, question),
        )
