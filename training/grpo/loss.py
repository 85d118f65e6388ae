"""Advantages of rollouts (GRPO, RLOO, REINFORCE++), the clipped policy-gradient loss, and estimates
of the divergence from the start.

A group is all rollouts of one question. All tensors are flat, with one entry for each token that
the policy sampled. Tokens of the environment are left out, so they are neither trained on nor
counted.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from statistics import fmean, pstdev, stdev
from typing import Any, Literal

from ..packing import StepTokens
from ..settings import GrpoSettings, OutcomeRlSettings, ReinforceSettings
from .rollouts import TrainingRollout

Estimator = Literal["k1", "k2", "k3"]

EPSILON = 1e-4
"""Term added to the standard deviation of a group (TRL's value)."""
ROUNDING = 1e-9
"""Standard deviation of values below which they are equal: means of equal rewards round."""


def clipped_loss(ratio: Any, advantages: Any, clip: float) -> Any:
    """Returns −min(ρA, clip(ρ, 1 − ε, 1 + ε)·A) for each token (PPO; Schulman et al. 2017, eq. 7).

    Args:
        ratio: ρ = π/π_old of each token.
        advantages: A of each token.
        clip: ε.
    """
    import torch

    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def is_clipped(ratio: Any, advantages: Any, clip: float) -> Any:
    """Returns, for each token, whether clipping stops its gradient."""
    return ((ratio > 1 + clip) & (advantages > 0)) | ((ratio < 1 - clip) & (advantages < 0))


def divergence(estimator: Estimator, log_ratio: Any) -> Any:
    """Estimates KL(π ‖ π_ref) at each token, in nats (Schulman, "Approximating KL divergence").

    As loss terms they differ in their expected gradients over the policy's own samples: that of k1
    is 0, that of k2 is ∇KL(π ‖ π_ref), that of k3 is ∇KL(π_ref ‖ π) (ARENA, appendix B).

    Args:
        estimator: k1 = d, k2 = d²/2 or k3 = exp(−d) − 1 + d.
        log_ratio: d = log π − log π_ref of each token.
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return (-log_ratio).exp() - 1 + log_ratio


class TokenMeans:
    """Means over the tokens of an update, by name."""

    def __init__(self) -> None:
        """Starts without values."""
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, values: Any) -> None:
        """Adds a tensor of values, one for each token."""
        self._sums[name] = self._sums.get(name, 0.0) + float(values.detach().sum())
        self._counts[name] = self._counts.get(name, 0) + int(values.numel())

    def means(self) -> dict[str, float]:
        """Returns the finite means."""
        means = {name: self._sums[name] / n for name, n in self._counts.items() if n}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def has_spread(rewards: Sequence[float]) -> bool:
    """Returns whether the rewards of a group differ; otherwise it teaches nothing."""
    return len(rewards) > 1 and max(rewards) > min(rewards)


def group_advantages(
    rewards: Sequence[float], scale: Literal["std", "none"] = "std"
) -> list[float]:
    """Returns (r − mean) / (std + ε) for each rollout of a group (GRPO; DeepSeekMath, section 4.1).

    Args:
        rewards: Rewards of at least two rollouts.
        scale: `std` divides by the sample standard deviation; `none` does not (Dr. GRPO).
    """
    mean = fmean(rewards)
    divisor = stdev(rewards) + EPSILON if scale == "std" else 1.0
    return [(reward - mean) / divisor for reward in rewards]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Returns each reward minus the mean of its group's others (RLOO; Ahmadian et al. 2024)."""
    total, peers = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / peers for reward in rewards]


def discounted_returns(reward: float, log_ratios: Sequence[float], beta: float) -> list[float]:
    """Returns R_t = r − β · Σ_{s ≥ t} d_s for each policy token of a rollout (REINFORCE++, γ = 1).

    Args:
        reward: Reward of the rollout, minus the baseline.
        log_ratios: d = log π_old − log π_ref of each policy token, in nats.
        beta: Weight of the divergence.
    """
    to_go = list(accumulate(reversed(log_ratios)))[::-1]
    return [reward - beta * divergence for divergence in to_go]


def standardised(rollouts: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns (x − mean) / std over all tokens of all rollouts, in the shape of the input.

    REINFORCE++'s normalisation of its advantages. Values that are equal, except for rounding, give
    zeros.
    """
    flat = [value for rollout in rollouts for value in rollout]
    mean, deviation = fmean(flat), pstdev(flat)
    if deviation < ROUNDING:
        return [[0.0] * len(rollout) for rollout in rollouts]
    return [[(value - mean) / deviation for value in rollout] for rollout in rollouts]


def advantages_of(
    groups: Sequence[Sequence[TrainingRollout]],
    settings: OutcomeRlSettings,
    log_ratios: Mapping[StepTokens, Sequence[float]] | None = None,
) -> list[tuple[TrainingRollout, list[float]]]:
    """Returns all rollouts, each with the advantages of its sampled tokens.

    They are 0 for a rollout without others in its group, and in groups without spread, apart from
    the divergence. REINFORCE++ standardises over the whole batch instead.

    Args:
        log_ratios: log π_old − log π_ref of each call's tokens, in nats, if they are subtracted
            from the reward.
    """
    beta = settings.beta if settings.kl_in == "reward" and log_ratios is not None else 0.0
    if isinstance(settings, ReinforceSettings):
        return _reinforce(groups, settings, log_ratios, beta)
    compare = centred = leave_one_out
    if isinstance(settings, GrpoSettings):
        compare = partial(group_advantages, scale=settings.scale)
        centred = partial(group_advantages, scale="none")
    rollouts = []
    for group in groups:
        rewards = [rollout.reward for rollout in group]
        advantages = compare(rewards) if has_spread(rewards) else [0.0] * len(group)
        if beta and len(group) > 1:
            # Scaled by a deviation of its own, the divergence would count fully at any beta.
            costs = [beta * sum(_of_tokens(rollout, log_ratios)) for rollout in group]
            advantages = [a - c for a, c in zip(advantages, centred(costs), strict=True)]
        rollouts += [
            (rollout, [advantage] * rollout.sampled)
            for rollout, advantage in zip(group, advantages, strict=True)
        ]
    return rollouts


def _reinforce(
    groups: Sequence[Sequence[TrainingRollout]],
    settings: ReinforceSettings,
    log_ratios: Mapping[StepTokens, Sequence[float]] | None,
    beta: float,
) -> list[tuple[TrainingRollout, list[float]]]:
    rollouts, returns = [], []
    for group in groups:
        by_group = settings.baseline == "group"
        baseline = fmean(rollout.reward for rollout in group) if by_group and group else 0.0
        for rollout in group:
            rollouts.append(rollout)
            gained = rollout.reward - baseline
            returns.append(discounted_returns(gained, _of_tokens(rollout, log_ratios), beta))
    return list(zip(rollouts, standardised(returns), strict=True)) if rollouts else []


def _of_tokens(
    rollout: TrainingRollout, log_ratios: Mapping[StepTokens, Sequence[float]] | None
) -> list[float]:
    if log_ratios is None:
        return [0.0] * rollout.sampled
    return [value for call in rollout.calls for value in log_ratios[call.tokens]]
