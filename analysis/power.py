"""How many questions a comparison needs before it is started."""

from math import ceil, sqrt
from statistics import NormalDist


def questions_needed(
    disagreement: float, effect: float, power: float = 0.8, alpha: float = 0.05
) -> int:
    """Returns the number of questions at which a paired comparison detects a difference in EM.

    The test is McNemar's. n = ((z(1 − α/2)·√ψ + z(power)·√(ψ − δ²)) / δ)², rounded up, with
    disagreement ψ and effect δ (Connor 1987). The variance between training seeds is not included.

    Args:
        disagreement: Share of questions that exactly one of both policies answers right, in (0, 1].
        effect: True difference in EM, in [−disagreement, disagreement] and not 0.
        power: Probability of detecting the effect, in (0, 1).
        alpha: Two-sided level, in (0, 1).

    Raises:
        ValueError: If a share is outside its range.
    """
    if not 0 < abs(effect) <= disagreement <= 1:
        raise ValueError(
            f"an effect of {effect} with a disagreement of {disagreement}: policies cannot differ "
            "by more than they disagree"
        )
    if not (0 < power < 1 and 0 < alpha < 1):
        raise ValueError(f"power {power} and alpha {alpha} must be in (0, 1)")
    normal = NormalDist()
    null = normal.inv_cdf(1 - alpha / 2) * sqrt(disagreement)
    real = normal.inv_cdf(power) * sqrt(disagreement - effect**2)
    return ceil(((null + real) / effect) ** 2)
