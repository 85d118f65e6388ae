"""Draws batches of rollouts for outcome RL with the current policy."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol, Self

from agent.environment import Environment, Trajectory
from base.errors import BranchwiseError, BudgetExceeded, TrainingError
from engines.ledgered import LedgeredEngine
from engines.sampling import Engine, Sampling
from evaluation.scoring import score_trajectory
from retrieval.interface import Retriever
from rewards.outcome import Outcome
from rewards.scheme import RewardScheme
from runs.factories import environment_for, sampling_for
from runs.progress import Item, Progress, attempt_each
from runs.recipe import Recipe
from runs.stage import Gate, StageContext, listed
from storage.ledger import Ledger
from storage.records import Prediction, Question
from training.grpo.canary import Canary
from training.grpo.loss import has_spread
from training.grpo.rollouts import PolicyCall, Rollout, RolloutBatch, batch_indices
from training.packing import StepTokens

PATH = "grpo"
"""Ledger path of the rollouts; followed by the numbers of batch and epoch."""


class Serving(Protocol):
    """See `runs.training.policy_serving`."""

    def serve(self, model: Any) -> AbstractAsyncContextManager[Engine]: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its reward and its evaluation metrics."""

    rollout: Rollout
    outcome: Outcome
    row: Prediction


@dataclass(frozen=True)
class Rollouts:
    """Draws batches of rollouts (a `RolloutSource`); use it in a `with` block.

    Attributes:
        recipe: Recipe; `training.grpo` sets the sizes.
        dev: Questions that are regularly answered greedily; none are trained on.
        runner: Event loop of all batches, because a server stays open between them.
    """

    context: StageContext
    recipe: Recipe
    questions: Sequence[Question]
    dev: Sequence[Question]
    retriever: Retriever
    ledger: Ledger
    gate: Gate
    scheme: RewardScheme
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
            measured = {"sync_s": time.monotonic() - began, "canary_error": checked.error}
            if checked.moved is not None:
                measured["canary_moved"] = checked.moved
            self.ledger.note_engine(served.digest, json.dumps(asdict(served.capabilities)))
            engine = LedgeredEngine(
                served, self.ledger, self.recipe.policy.price_per_million, self.gate.check
            )
            environment = self._environment(engine)
            began = time.monotonic()
            groups, lost = await self._groups(environment, number)
            measured["sample_s"] = time.monotonic() - began
            measured |= _curve([one for group in groups for one in group])
            measured |= {f"lost_{reason}": float(count) for reason, count in lost.items()}
            spread = [has_spread([one.rollout.reward for one in group]) for group in groups]
            measured["silent_share"] = 1 - fmean(spread) if spread else 1.0
            measured |= await self._dev(environment, number)
        return RolloutBatch([[one.rollout for one in group] for group in groups], measured)

    def _environment(self, engine: Engine) -> Environment:
        """Returns an environment without structured decoding, which would change the policy."""
        agent = self.recipe.agent.model_copy(update={"structured": False})
        recipe = self.recipe.model_copy(update={"agent": agent})
        return replace(environment_for(recipe, engine, self.retriever), tokens=True)

    async def _groups(
        self, environment: Environment, number: int
    ) -> tuple[list[list[ScoredRollout]], Counter[str]]:
        """Draws the groups of a batch; dynamic sampling adds one for each without reward spread."""
        settings = self.recipe.training.grpo
        lost: list[BranchwiseError | None] = []
        waiting = self._window(number)
        groups: list[list[ScoredRollout]] = []
        wanted, drawn = settings.batch_questions, 0
        while wanted > 0 and waiting:
            asked, waiting = waiting[:wanted], waiting[wanted:]
            found = await self._draw(environment, number, asked, lost)
            drawn += len(asked) * settings.group_size
            self._check_lost(number, lost, drawn)
            groups += [group for group in found if group]
            with_spread = sum(has_spread([one.rollout.reward for one in group]) for group in groups)
            wanted = settings.batch_questions - with_spread
        return groups, _by_reason(lost)

    def _check_lost(self, number: int, lost: Sequence[BranchwiseError | None], drawn: int) -> None:
        share = self.recipe.limits.max_failed_share
        if len(lost) > max(1, share * drawn):
            last = next((f" The last error: {one}." for one in reversed(lost) if one), "")
            raise TrainingError(
                f"batch {number}: {len(lost)} of {drawn} rollouts failed "
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
        asked: Sequence[tuple[Question, str]],
        lost: list[BranchwiseError | None],
    ) -> list[list[ScoredRollout]]:
        """Draws a group per question; appends the errors of lost rollouts to `lost`.

        A rollout that the scheme cannot score is lost without an error (None).
        """
        size = self.recipe.training.grpo.group_size
        sampling = sampling_for(self.recipe.policy)
        progress = Progress(f"batch {number}", len(asked) * size, spent=self.ledger.totals)
        # Keyed by draw: sums of floats, and therefore the weights, depend on the order.
        drawn: list[dict[int, ScoredRollout]] = [{} for _ in asked]
        draws = ((index, draw) for index in range(len(asked)) for draw in range(size))

        async def roll(item: tuple[int, int]) -> ScoredRollout | None:
            (question, path), draw = asked[item[0]], item[1]
            return await self._rollout(environment, question, sampling, path, draw)

        async with progress.shown(self.context.console):
            async for (index, draw), found in self._attempts(draws, roll, progress):
                if isinstance(found, ScoredRollout):
                    drawn[index][draw] = found
                else:
                    lost.append(found)
        return [[group[draw] for draw in sorted(group)] for group in drawn]

    async def _attempts(
        self, items: Iterable[Item], work: Any, progress: Progress
    ) -> AsyncIterator[tuple[Item, ScoredRollout | BranchwiseError | None]]:
        """Works on more items at once than the engine's batch holds, to keep it full.

        Raises:
            BudgetExceeded: If the gate closed.
        """
        at_once = 2 * self.recipe.limits.max_concurrency
        async for one in attempt_each(self.gate.admit(items), work, at_once, progress):
            yield one
        if self.gate.closed():
            self.gate.check()
            raise BudgetExceeded(str(self.gate.reason))

    async def _rollout(
        self,
        environment: Environment,
        question: Question,
        sampling: Sampling,
        path: str,
        draw: int,
    ) -> ScoredRollout | None:
        """Draws a rollout; returns None if the scheme cannot score it."""
        trajectory = await environment.trajectory(
            await environment.root(question),
            sampling,
            question_id=question.id,
            path=path,
            draw=draw,
        )
        outcome = self.scheme.outcome(trajectory.state, question)
        if outcome.total is None:
            return None
        row = score_trajectory(question, trajectory, environment, policy=PATH)
        rollout = Rollout(question.id, _calls(trajectory), outcome.total)
        return ScoredRollout(rollout, outcome, row)

    async def _dev(self, environment: Environment, number: int) -> dict[str, float]:
        """Answers the dev questions greedily in every `eval_every`-th batch; else returns {}."""
        every = self.recipe.training.grpo.eval_every
        if not every or number % every:
            return {}
        sampling = sampling_for(self.recipe.policy, temperature=0.0)

        async def answer(question: Question) -> ScoredRollout | None:
            return await self._rollout(environment, question, sampling, "grpo-dev", 0)

        attempts = self._attempts(self.dev, answer, Progress("dev", len(self.dev)))
        rows = [found.row async for _, found in attempts if isinstance(found, ScoredRollout)]
        lost = len(self.dev) - len(rows)
        found = {"dev_lost": float(lost)} if lost else {}
        if rows:
            found["dev_em"] = fmean(row.em or 0.0 for row in rows)
            self.context.log(
                f"batch {number}: greedy EM on dev {100 * found['dev_em']:.1f} % of "
                f"{len(rows)} questions"
            )
        return found


def _by_reason(lost: Iterable[BranchwiseError | None]) -> Counter[str]:
    return Counter("unscored" if one is None else type(one).__name__ for one in lost)


def _calls(trajectory: Trajectory) -> tuple[PolicyCall, ...]:
    return tuple(
        PolicyCall(
            StepTokens(move.completion.prompt_ids or (), move.completion.token_ids or ()),
            move.completion.logprobs,
        )
        for move in trajectory.moves
    )


def _curve(finished: Sequence[ScoredRollout]) -> dict[str, float]:
    if not finished:
        return {"rollouts": 0.0}
    rows = [one.row for one in finished]
    values: dict[str, list[float | None]] = {
        "reward": [one.rollout.reward for one in finished],
        "em": [row.em for row in rows],
        "f1": [row.f1 for row in rows],
        "answer_rate": [float(bool(row.prediction)) for row in rows],
        "format_ok": [float(row.format_ok) for row in rows],
        "policy_tokens": [float(one.rollout.sampled) for one in finished],
        "total_tokens": [float(row.turn_tokens or row.input_tokens) for row in rows],
        "calls": [float(row.steps) for row in rows],
        "retrievals": [
            float(row.searches if row.retrievals is None else row.retrievals) for row in rows
        ],
        "valid_searches": [float(row.valid_searches) for row in rows],
        "evaluated": [row.evaluated for row in rows],
        "copied": [row.copied for row in rows],
    }
    for name in dict.fromkeys(name for one in finished for name in one.outcome.components):
        values[f"reward/{name}"] = [one.outcome.components.get(name) for one in finished]
    means = {
        name: [value for value in found if value is not None] for name, found in values.items()
    }
    endings = Counter(row.stop_reason for row in rows)
    return {
        "rollouts": float(len(finished)),
        **{name: fmean(known) for name, known in means.items() if known},
        **{f"end/{reason}": count / len(rows) for reason, count in sorted(endings.items())},
    }
