"""The clipped policy-gradient loss, and estimates of the divergence from the start.

All tensors are flat, with one entry for each token that the policy sampled. Tokens of the
environment are left out, so they are neither trained on nor counted.
"""

import math
from typing import Any, Literal

Estimator = Literal["k1", "k2", "k3"]


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
        sums = self._sums.items()
        found = {name: total / self._counts[name] for name, total in sums if self._counts[name]}
        return {name: value for name, value in found.items() if math.isfinite(value)}
