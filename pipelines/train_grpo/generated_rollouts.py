"""Draws batches of rollouts for outcome RL with the current policy."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any, Protocol, Self

from branchwise.agent import Environment, Trajectory, protocol_of
from branchwise.base import BranchwiseError, BudgetExceeded, TrainingError, known_mean
from branchwise.engines import Engine, LedgeredEngine, Sampling
from branchwise.evaluation import score_trajectory
from branchwise.rewards import Outcome
from branchwise.runs import (
    Gate,
    Item,
    Prepared,
    Progress,
    Recipe,
    attempt_each,
    listed,
)
from branchwise.storage import Ledger
from branchwise.training import (
    BatchMetrics,
    Canary,
    PolicyCall,
    RolloutBatch,
    StepTokens,
    TrainingRollout,
    batch_indices,
    has_spread,
)
from branchwise.types import Prediction, Question

PATH = "grpo"
"""Ledger path of the rollouts; followed by the numbers of batch and epoch."""


class Serving(Protocol):
    """See `pipelines.train_grpo.policy_serving`."""

    def serve(self, model: Any) -> AbstractAsyncContextManager[Engine]: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its reward and its evaluation metrics."""

    rollout: TrainingRollout
    outcome: Outcome
    row: Prediction


@dataclass(frozen=True)
class Rollouts:
    """Draws batches of rollouts (a `RolloutSource`); use it in a `with` block.

    Attributes:
        prepared: What the stage works with.
        recipe: Recipe of this training, with its rewards and sizes.
        dev: Questions that are regularly answered greedily; none are trained on.
        runner: Event loop of all batches, because a server stays open between them.
    """

    prepared: Prepared
    recipe: Recipe
    questions: Sequence[Question]
    dev: Sequence[Question]
    ledger: Ledger
    gate: Gate
    serving: Serving
    canary: Canary
    runner: asyncio.Runner = field(default_factory=asyncio.Runner, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.runner:
            self.runner.run(self.serving.close())

    def collect(self, number: int, model: Any) -> RolloutBatch:
        """Draws batch `number` with the weights of `model`.

        Raises:
            TrainingError: If more than one rollout, and more than `limits.max_failed_share` of
                them, failed. Those that need no search would survive a search server that is down,
                and the policy would learn not to search.
        """
        return self.runner.run(self._collect(number, model))

    async def _collect(self, number: int, model: Any) -> RolloutBatch:
        began = time.monotonic()
        async with self.serving.serve(model) as served:
            checked = await self.canary.check(served, model)
            sync_s = time.monotonic() - began
            self.ledger.note_engine(served.digest, json.dumps(asdict(served.capabilities)))
            engine = LedgeredEngine(
                served, self.ledger, self.recipe.policy.price_per_million, self.gate.check
            )
            environment = self._environment(engine)
            began = time.monotonic()
            groups, lost = await self._groups(environment, number)
            metrics = replace(
                _metrics([scored for group in groups for scored in group]),
                sync_s=sync_s,
                sample_s=time.monotonic() - began,
                canary_error=checked.error,
                canary_moved=checked.moved,
                lost={reason: float(count) for reason, count in lost.items()},
                silent_share=1 - fmean(map(_has_spread, groups)) if groups else 1.0,
            )
            await self._add_dev(metrics, environment, number)
        return RolloutBatch([[scored.rollout for scored in group] for group in groups], metrics)

    def _environment(self, engine: Engine) -> Environment:
        """Returns an environment without structured decoding, which would change the policy."""
        agent = self.recipe.agent.model_copy(update={"structured": False})
        environment = self.prepared.environment(engine, protocol_of(agent))
        return replace(environment, tokens=True)

    async def _groups(
        self, environment: Environment, number: int
    ) -> tuple[list[list[ScoredRollout]], Counter[str]]:
        """Draws the groups of a batch; dynamic sampling adds one for each without reward spread."""
        settings = self.recipe.training.grpo
        lost: list[BranchwiseError | None] = []
        waiting = self._window(number)
        groups: list[list[ScoredRollout]] = []
        missing, draws = settings.batch_questions, 0
        while missing > 0 and waiting:
            questions, waiting = waiting[:missing], waiting[missing:]
            groups += filter(None, await self._draw(environment, number, questions, lost))
            draws += len(questions) * settings.group_size
            self._check_lost(number, lost, draws)
            missing = settings.batch_questions - sum(map(_has_spread, groups))
        return groups, _by_reason(lost)

    def _check_lost(self, number: int, lost: Sequence[BranchwiseError | None], draws: int) -> None:
        share = self.recipe.limits.max_failed_share
        if len(lost) > max(1, share * draws):
            last = next((f" The last error: {error}." for error in reversed(lost) if error), "")
            raise TrainingError(
                f"batch {number}: {len(lost)} of {draws} rollouts failed "
                f"({listed(_by_reason(lost))}), more than limits.max_failed_share ({share:g})."
                f"{last} Fix the cause or raise the limit, then rerun the same command to resume"
            )

    def _window(self, number: int) -> list[tuple[Question, str]]:
        """Returns a batch's questions, including reserves for dynamic sampling, and their paths.

        They depend only on the batch's number, so a resumed training draws the same. A batch across
        two epochs can contain a question twice; the paths keep its rollouts apart.
        """
        settings = self.recipe.training.grpo
        size = settings.batch_questions + settings.dynamic_sampling
        seed = f"questions:{self.recipe.seed}"
        return [
            (self.questions[index], f"{PATH}/{number}/{epoch}")
            for epoch, index in batch_indices(number, size, len(self.questions), seed)
        ]

    async def _draw(
        self,
        environment: Environment,
        number: int,
        questions: Sequence[tuple[Question, str]],
        lost: list[BranchwiseError | None],
    ) -> list[list[ScoredRollout]]:
        """Draws a group per question; appends the errors of lost rollouts to `lost`.

        A rollout that the scheme cannot score is lost without an error (None).
        """
        size = self.recipe.training.grpo.group_size
        sampling = Sampling.of(self.recipe.policy)
        progress = Progress(f"batch {number}", len(questions) * size, spent=self.ledger.totals)
        progress.watch(environment.engine)
        # Keyed by draw: sums of floats, and therefore the weights, depend on the order.
        groups: list[dict[int, ScoredRollout]] = [{} for _ in questions]

        async def roll(item: tuple[int, int]) -> ScoredRollout | None:
            (question, path), draw = questions[item[0]], item[1]
            return await self._rollout(environment, question, sampling, path, draw)

        draws = product(range(len(questions)), range(size))
        async with progress.shown(self.prepared.context.console):
            async for (index, draw), outcome in self._attempts(draws, roll, progress):
                if isinstance(outcome, ScoredRollout):
                    groups[index][draw] = outcome
                else:
                    lost.append(outcome)
        return [[group[draw] for draw in sorted(group)] for group in groups]

    async def _attempts(
        self, items: Iterable[Item], work: Any, progress: Progress
    ) -> AsyncIterator[tuple[Item, ScoredRollout | BranchwiseError | None]]:
        """Works on more items at once than the engine's batch holds, to keep it full.

        Raises:
            BudgetExceeded: If the gate closed.
        """
        servers = len(self.recipe.policy.at_each_server)
        at_once = 2 * servers * self.recipe.limits.max_concurrency
        async for attempted in attempt_each(self.gate.admit(items), work, at_once, progress):
            yield attempted
        if self.gate.closed():
            raise BudgetExceeded(str(self.gate.reason))

    async def _rollout(
        self, environment: Environment, question: Question, sampling: Sampling, path: str, draw: int
    ) -> ScoredRollout | None:
        """Draws a rollout; returns None if the scheme cannot score it."""
        root = await environment.root(question)
        trajectory = await environment.trajectory(
            root, sampling, question_id=question.id, path=path, draw=draw
        )
        outcome = self.recipe.scheme.outcome(trajectory.state, question)
        if outcome.total is None:
            return None
        row = score_trajectory(question, trajectory, environment, policy=PATH)
        rollout = TrainingRollout(question.id, _calls(trajectory), outcome.total)
        return ScoredRollout(rollout, outcome, row)

    async def _add_dev(self, metrics: BatchMetrics, environment: Environment, number: int) -> None:
        """Answers the dev questions greedily in every `eval_every`-th batch; adds the metrics."""
        every = self.recipe.training.grpo.eval_every
        if not every or number % every:
            return
        sampling = Sampling.of(self.recipe.policy, temperature=0.0)

        async def answer(question: Question) -> ScoredRollout | None:
            return await self._rollout(environment, question, sampling, "grpo-dev", 0)

        attempts = self._attempts(self.dev, answer, Progress("dev", len(self.dev)))
        rows = [scored.row async for _, scored in attempts if isinstance(scored, ScoredRollout)]
        if lost := len(self.dev) - len(rows):
            metrics.dev_lost = float(lost)
        if rows:
            metrics.dev_em = fmean(row.em or 0.0 for row in rows)
            self.prepared.context.log(
                f"batch {number}: greedy EM on dev {100 * metrics.dev_em:.1f} % of "
                f"{len(rows)} questions"
            )


def _has_spread(group: Sequence[ScoredRollout]) -> bool:
    return has_spread([scored.rollout.reward for scored in group])


def _by_reason(lost: Iterable[BranchwiseError | None]) -> Counter[str]:
    return Counter("unscored" if error is None else type(error).__name__ for error in lost)


def _calls(trajectory: Trajectory) -> tuple[PolicyCall, ...]:
    return tuple(
        PolicyCall(
            StepTokens(move.completion.prompt_ids or (), move.completion.token_ids or ()),
            move.completion.logprobs,
        )
        for move in trajectory.moves
    )


def _metrics(finished: Sequence[ScoredRollout]) -> BatchMetrics:
    rows = [scored.row for scored in finished]
    names = dict.fromkeys(name for scored in finished for name in scored.outcome.components)
    components = {
        name: known_mean(scored.outcome.components.get(name) for scored in finished)
        for name in names
    }
    endings = Counter(row.stop_reason for row in rows)
    return BatchMetrics(
        rollouts=float(len(finished)),
        reward=known_mean(scored.rollout.reward for scored in finished),
        components={name: mean for name, mean in components.items() if mean is not None},
        em=known_mean(row.em for row in rows),
        f1=known_mean(row.f1 for row in rows),
        answer_rate=known_mean(bool(row.prediction) for row in rows),
        format_ok=known_mean(row.format_ok for row in rows),
        policy_tokens=known_mean(scored.rollout.sampled for scored in finished),
        total_tokens=known_mean(row.turn_tokens or row.input_tokens for row in rows),
        calls=known_mean(row.steps for row in rows),
        retrievals=known_mean(
            row.searches if row.retrievals is None else row.retrievals for row in rows
        ),
        valid_searches=known_mean(row.valid_searches for row in rows),
        evaluated=known_mean(row.evaluated for row in rows),
        copied=known_mean(row.copied for row in rows),
        endings={reason: count / len(rows) for reason, count in sorted(endings.items())},
    )
