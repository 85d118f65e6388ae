"""Rates the difficulty of questions by rollouts (R1-Searcher section 2.1)."""

import json
from collections.abc import Sequence
from functools import partial

from agent.environment import Environment
from analysis.difficulty import difficulty_of
from base.errors import BranchwiseError
from base.text import digest_of
from retrieval.interface import Retriever
from rewards.outcome import AnswerScores
from runs.evaluation.question_set import answering
from runs.factories import environment_for, open_engine, sampling_for
from runs.inputs import model_digest, questions_digest
from runs.progress import Progress, attempt_each
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
        rater: The recipe with the rater as its policy (`Recipe.rater_recipe`).

    Raises:
        EndpointError: If a fault is fatal; a fault of a single question becomes a `Failure`.
    """
    opened = open_engine(rater.policy, rater, ledger, gate.check, context.log)
    async with opened as engine, progress.shown(context.console):
        environment = environment_for(rater, engine, retriever)
        rate = partial(_rate, rater, environment, deciding_digest(rater, retriever))
        at_once = rater.questions_in_flight
        return [
            Failure.of(question.id, "select", row) if isinstance(row, BranchwiseError) else row
            async for question, row in attempt_each(gate.admit(pending), rate, at_once, progress)
        ]


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


async def _rate(
    recipe: Recipe, environment: Environment, deciding: str, question: Question
) -> Difficulty:
    settings = recipe.difficulty
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
        config_digest=row_digest(deciding, question),
    )
