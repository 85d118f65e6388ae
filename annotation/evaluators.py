"""What a new node is worth to the search: a rollout (ReasonRAG eq. 1) or a judge (eq. 6).

Both return a `NodeFacts`: the value that the search backs up, and the facts that labels are later
computed from.
"""

import asyncio
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from agent.environment import Environment, Trajectory
from agent.state import State
from annotation.judge import Judge
from engines.sampling import Sampling, Usage
from rewards.answers import f1
from rewards.outcome import AnswerScores
from rewards.settings import SpreSettings
from rewards.spre import trajectory_digest
from storage.errors import BudgetExceeded
from storage.records import Question, Rollout

ROLLOUTS = "rollout"
"""Where the ledger keeps the draws of a tree's rollouts: `rollout/<path of the node>`."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node.

    Attributes:
        value: what the search backs up; null where judge or reward model gave no score.
        verdict: the verifier's on a refusal; null where none was asked or could be read.
        usage: tokens of the evaluation's calls.
        unscored: why judge or reward model gave none.
    """

    value: float | None
    rollouts: tuple[Rollout, ...] = ()
    judge_score: float | None = None
    judge_text: str | None = None
    unscored: str | None = None
    verdict: bool | None = None
    usage: Usage = Usage()


class Evaluator(Protocol):
    """Values non-terminal states."""

    async def evaluate(self, question: Question, state: State, path: str) -> NodeFacts:
        """Value `state`; `path` names the node in the ledger."""
        ...


def evaluate_leaf(question: Question, state: State, spre: SpreSettings) -> NodeFacts:
    """F1 · α^depth of a terminal state, never judged; an invalid action is worth 0."""
    answer = state.answer
    if answer is None:
        return NodeFacts(0.0)
    score = f1(answer, question.answers, keep_articles=spre.keep_articles)
    return NodeFacts(score * spre.alpha**state.depth)


@dataclass(frozen=True)
class RolloutEvaluator:
    """Mean over `spre.rollouts` simulated completions of F1 · α^steps (0 for an invalid end).

    Attributes:
        root: before the node's path in the ledger; draws under another root are other draws.
    """

    environment: Environment
    sampling: Sampling
    spre: SpreSettings
    root: str = ROLLOUTS

    async def evaluate(self, question: Question, state: State, path: str) -> NodeFacts:
        trajectories = await self._trajectories(question, state, path)
        rollouts = [self._rollout(question, t, draw) for draw, t in enumerate(trajectories)]
        return NodeFacts(
            value=fmean(self._worth(question, t) for t in trajectories),
            rollouts=tuple(rollouts),
            usage=sum((t.usage for t in trajectories), Usage()),
        )

    async def _trajectories(self, question: Question, state: State, path: str) -> list[Trajectory]:
        """All draws; one that fails ends the others, which would pay for nothing."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._drawn(question, state, path, draw))
                    for draw in range(self.spre.rollouts)
                ]
        except BaseExceptionGroup as failed:
            first = failed.exceptions[0]
            raise first from first.__cause__
        return [_finished(task.result()) for task in tasks]

    async def _drawn(
        self, question: Question, state: State, path: str, draw: int
    ) -> Trajectory | BudgetExceeded:
        """One draw. A limit is no fault: the others' calls under way must still be stored."""
        try:
            return await self.environment.trajectory(
                state, self.sampling, question_id=question.id, path=f"{self.root}/{path}", draw=draw
            )
        except BudgetExceeded as limit:
            return limit

    def _worth(self, question: Question, trajectory: Trajectory) -> float:
        return evaluate_leaf(question, trajectory.state, self.spre).value or 0.0

    def _rollout(self, question: Question, trajectory: Trajectory, draw: int) -> Rollout:
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


def _finished(drawn: Trajectory | BudgetExceeded) -> Trajectory:
    if isinstance(drawn, BudgetExceeded):
        raise drawn
    return drawn


@dataclass(frozen=True)
class JudgeEvaluator:
    """score · α^depth (eq. 6); unscored where the reply cannot be read."""

    judge: Judge
    spre: SpreSettings

    async def evaluate(self, question: Question, state: State, path: str) -> NodeFacts:
        verdict = await self.judge.score(question, state, f"judge/{path}")
        facts = NodeFacts(
            value=None,
            judge_score=verdict.score,
            judge_text=verdict.text,
            unscored=verdict.reason,
            usage=verdict.usage,
        )
        if verdict.score is None:
            return facts
        return replace(facts, value=verdict.score * self.spre.alpha**state.depth)
