"""Values of new nodes for the search: a rollout (ReasonRAG eq. 1), a judge (eq. 6) or a reward
model.

All return a `NodeEvaluation`: the value that the search backs up, and the facts from which labels
are computed later.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Protocol

from branchwise.agent import INVALID, Environment, State, Trajectory
from branchwise.engines import Sampling
from branchwise.rewards import (
    AnswerScores,
    NodeEvaluation,
    Prompt,
    RewardModel,
    RewardScheme,
    prefix_of,
    trajectory_digest,
)
from branchwise.types import Question, Rollout

from .judge import Judge

ROLLOUTS = "rollout"
"""Ledger path of a tree's rollouts: `rollout/<path of the node>`."""


class Evaluator(Protocol):
    """Values states."""

    @property
    def terminals(self) -> bool:
        """Whether it also values terminal states, instead of their outcome."""
        ...

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        """Values `state`; `path` names the node in the ledger."""
        ...


@dataclass(frozen=True)
class RolloutEvaluator:
    """Mean outcome of simulated completions (0 for one that the scheme cannot score).

    Attributes:
        draws: Completions per node.
        terminals: See `Evaluator`.
    """

    environment: Environment
    sampling: Sampling
    draws: int
    scheme: RewardScheme
    terminals: bool = False

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        trajectories = await draw_rollouts(
            self.environment, self.sampling, question, state, f"{ROLLOUTS}/{path}", self.draws
        )
        outcomes = [self.scheme.outcome(t.state, question) for t in trajectories]
        return NodeEvaluation(
            value=fmean(outcome.total or 0.0 for outcome in outcomes),
            rollouts=rollout_rows(question, trajectories),
        )


async def draw_rollouts(
    environment: Environment,
    sampling: Sampling,
    question: Question,
    state: State,
    path: str,
    draws: int,
) -> list[Trajectory]:
    """Completes a state `draws` times; `path` names the calls in the ledger.

    If a draw fails, or a limit stops it, the others are cancelled, because their results would be
    useless. Their calls in progress are stored.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    environment.trajectory(
                        state, sampling, question_id=question.id, path=path, draw=draw
                    )
                )
                for draw in range(draws)
            ]
    # Callers handle one error of an endpoint or a limit, so the first leaves the group.
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


def rollout_rows(question: Question, trajectories: Sequence[Trajectory]) -> tuple[Rollout, ...]:
    """Returns completions in the form in which a node stores them."""
    return tuple(_row(question, trajectory, draw) for draw, trajectory in enumerate(trajectories))


def _row(question: Question, trajectory: Trajectory, draw: int) -> Rollout:
    state = trajectory.state
    scores = AnswerScores.of(state.answer, question.answers)
    return Rollout(
        draw=draw,
        answer=state.answer,
        em=scores.em,
        f1=scores.f1,
        steps=state.depth,
        forced=state.forced,
        tokens=trajectory.usage.output_tokens,
        stop_reason=trajectory.stop_reason,
        trajectory=trajectory_digest((s.action.kind, s.action.content) for s in state.steps),
    )


@dataclass(frozen=True)
class JudgeEvaluator:
    """A judge's score, as converted by the scheme; no score if the reply cannot be read.

    Attributes:
        terminals: See `Evaluator`. An invalid action is worth 0 without a call.
    """

    judge: Judge
    scheme: RewardScheme
    terminals: bool = False

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        if state.terminal and state.steps[-1].action.kind == INVALID:
            return NodeEvaluation(0.0)
        evaluation = await self.judge.score(question, state, f"judge/{path}")
        if evaluation.judge_score is None:
            return evaluation
        return replace(evaluation, value=self.scheme.judged(evaluation.judge_score, state))


@dataclass(frozen=True)
class RewardModelEvaluator:
    """A reward model's score of the step that led to a state, inner or terminal.

    So all values of the search are on one scale. Labels still come from outcomes.

    States are scored one at a time, in another thread: a batch would change the last bits of a
    step's vector, and the same seed would no longer give the same tree.

    Attributes:
        prompt: State → messages of the prompt for its next step.
        terminals: See `Evaluator`; the model scores every step.
    """

    model: RewardModel
    prompt: Prompt
    terminals: bool = True
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        step, t = prefix_of(state, self.prompt), state.depth - 1
        async with self._turn:
            [score] = await asyncio.to_thread(self.model.score, [step], [t])
        too_long = "longer than the reward model reads" if score is None else None
        return NodeEvaluation(score, unscored=too_long)
