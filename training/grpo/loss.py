"""The clipped policy-gradient loss, and estimates of the divergence from the start.

All tensors are flat, with one entry for each token that the policy sampled. Tokens of the
environment are left out, so they are neither trained on nor counted.
"""

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
