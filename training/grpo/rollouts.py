"""Rollouts as training rows: one row per policy call, weighted so that rollouts count equally.

The rows of a batch share one prefix tree (`training.packing`). Text of the environment belongs to a
prompt, so no loss reads it, and a turn that continues is read once for all its calls. Protocols
that rewrite their prompt at each step train in the same way.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, Protocol

from branchwise.modeling import prefix_tree

from ..packing import StepTokens
from .batch_metrics import BatchMetrics


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """Tokens of one policy call.

    Attributes:
        tokens: Prompt and sampled tokens, as the engine read and wrote them.
        logprobs: Log-probabilities of the sampled tokens under the engine's model, in nats, or
            None.
    """

    tokens: StepTokens
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class TrainingRollout:
    """A finished rollout, as tokens to train on.

    Attributes:
        reward: Total reward under the reward scheme.
    """

    question_id: str
    calls: tuple[PolicyCall, ...]
    reward: float

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(len(call.tokens.step) for call in self.calls)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The rollouts of one batch.

    Attributes:
        groups: The rollouts of each question.
        metrics: Metrics of the rollouts; the trainer adds its own.
    """

    groups: Sequence[Sequence[TrainingRollout]]
    metrics: BatchMetrics = field(default_factory=BatchMetrics)


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A policy call to train on.

    Attributes:
        advantages: Advantage of each sampled token.
        weight: Weight of each sampled token in the loss of the update.
        logprobs: Log-probabilities of the sampled tokens under the engine's model, or None.
    """

    tokens: StepTokens
    advantages: tuple[float, ...]
    weight: float
    logprobs: tuple[float, ...] | None = None


class RolloutSource(Protocol):
    """Source of batches of rollouts.

    Implementations: `pipelines.train_grpo.generated_rollouts.Rollouts` draws new ones with the
    current weights; `pipelines.train_grpo.tree_groups.TreeGroups` reads those of stored trees.
    """

    def collect(self, number: int, model: Any) -> RolloutBatch:
        """Draws batch `number`, from 0, with the weights of `model` (a PEFT model).

        Raises:
            BudgetExceeded: If a limit was reached, or a stop signal came.
            TrainingError: If the engine does not serve these weights.
        """
        ...


def rows_of(
    rollouts: Sequence[tuple[TrainingRollout, Sequence[float]]],
    *,
    aggregation: Literal["rollout", "token"] = "rollout",
    has_kl: bool = True,
) -> list[TrainingRow]:
    """Returns the rows of one update that have a gradient.

    Rollouts with advantages of 0 count in the means of the loss, as in TRL's. Their rows are left
    out unless the loss has a divergence.

    Args:
        rollouts: All rollouts of the update, each with the advantages of its sampled tokens, call
            after call.
        aggregation: `rollout` weights a token by 1 / (rollouts · tokens of its rollout), `token`
            by 1 / tokens of all rollouts.
        has_kl: Whether the loss has a divergence from the start.
    """
    tokens = sum(rollout.sampled for rollout, _ in rollouts)
    rows = []
    for rollout, advantages in rollouts:
        share = len(rollouts) * rollout.sampled if aggregation == "rollout" else tokens
        remaining = iter(advantages)
        for call in rollout.calls:
            of_call = tuple(islice(remaining, len(call.tokens.step)))
            if has_kl or any(of_call):
                rows.append(TrainingRow(call.tokens, of_call, 1 / share, call.logprobs))
    return rows


def batch_indices(number: int, size: int, total: int, seed: str) -> list[tuple[int, int]]:
    """Returns the epoch and the index of each item of batch `number`, from 0.

    The batches follow each other through epochs of all items. Each epoch has an order of its own.

    Args:
        size: Items per batch.
        total: Number of items.
        seed: Random seed of the orders.
    """
    orders: dict[int, list[int]] = {}
    items = []
    for position in range(number * size, (number + 1) * size):
        epoch, place = divmod(position, total)
        if epoch not in orders:
            orders[epoch] = list(range(total))
            random.Random(f"{seed}:{epoch}").shuffle(orders[epoch])
        items.append((epoch, orders[epoch][place]))
    return items


def sample_rows(
    rows: Sequence[TrainingRow], max_tokens: int | None, seed: str
) -> list[TrainingRow]:
    """Draws rows at random until they have `max_tokens` distinct tokens, prompts included.

    Raises their weights by the share of rows left out, so that the expected gradient is that of
    all rows.
    """
    mixed = random.Random(seed).sample(rows, len(rows))
    if max_tokens is None or not mixed:
        return mixed

    def distinct(count: int) -> int:
        return len(prefix_tree([row.tokens.whole for row in mixed[:count]]).tokens)

    count = max(bisect_right(range(len(mixed) + 1), max_tokens, key=distinct) - 1, 1)
    raised = len(mixed) / count
    return [replace(row, weight=row.weight * raised) for row in mixed[:count]]
