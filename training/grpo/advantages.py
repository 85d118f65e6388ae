"""Advantages of rollouts: GRPO, RLOO and REINFORCE++.

A group is all rollouts of one question. The functions compute on lists of floats;
`training.grpo.loss` has the loss that uses them.
"""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, pstdev, stdev
from typing import Literal

Scale = Literal["std", "none"]

EPSILON = 1e-4
"""Term added to the standard deviation of a group (TRL's value)."""


def has_spread(rewards: Sequence[float]) -> bool:
    """Returns whether the rewards of a group differ; otherwise it teaches nothing."""
    return len(rewards) > 1 and max(rewards) > min(rewards)


def group_advantages(rewards: Sequence[float], scale: Scale = "std") -> list[float]:
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
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


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

    REINFORCE++'s normalisation of its advantages. Equal values give zeros.
    """
    flat = [value for rollout in rollouts for value in rollout]
    mean, deviation = fmean(flat), pstdev(flat)
    if deviation == 0.0:
        return [[0.0] * len(rollout) for rollout in rollouts]
    return [[(value - mean) / deviation for value in rollout] for rollout in rollouts]
