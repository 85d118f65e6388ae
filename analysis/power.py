"""How many questions a comparison needs before it is started."""

from math import ceil, sqrt
from statistics import NormalDist


def questions_needed(
    disagreement: float, effect: float, power: float = 0.8, alpha: float = 0.05
) -> int:
    """Returns questions of a paired comparison that shows a true difference in EM (McNemar's test).

    n = ((z(1 − α/2)·√ψ + z(power)·√(ψ − δ²)) / δ)², rounded up, with disagreement ψ and effect δ
    (Connor 1987). Luck of the training seeds is not in it.

    Args:
        disagreement: share of the questions that exactly one of both policies answers right, in
            (0, 1].
        effect: the difference in EM, in [−disagreement, disagreement] and not 0.
        power: chance that it is seen, in (0, 1).
        alpha: two-sided level, in (0, 1).

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
