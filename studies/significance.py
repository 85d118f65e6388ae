"""Significance tests and savings of the studies, besides the intervals of `branchwise.analysis`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from branchwise.analysis import Interval, crossed_means, paired_difference, percentile_interval
from branchwise.base import to_uint32

_CHUNK_DRAWS = 2_000_000
"""Maximum number of sign flips in memory (16 MB)."""

EXACT_UP_TO = 20
"""Maximum number of differing questions for an exact permutation test (a million sign flips)."""


def relative_saving(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Returns 1 − mean(candidate) / mean(baseline) of counts such as searches, with its interval.

    Means are over questions × seeds. The interval is drawn as in `crossed_bootstrap`, with both
    means from the same questions and seeds. A sample with a baseline of 0 has a saving of 0.

    Args:
        baseline, candidate: Counts ≥ 0, in the shapes of `crossed_bootstrap`.

    Returns:
        Saving of at most 1; negative if `candidate` counts more.

    Raises:
        ValueError: If the arms cannot be paired, a count is not a number, or the baseline's mean is
            0.
    """
    shape = paired_difference(baseline, candidate).shape
    before, after = (
        np.broadcast_to(np.reshape(counts, (shape[0], -1)), shape)
        for counts in (baseline, candidate)
    )
    if before.mean() <= 0:
        raise ValueError("the baseline's mean count is 0, so its saving is undefined")
    means = crossed_means([before, after], resamples, np.random.default_rng(to_uint32(seed)))
    base, saved = means[:, 0], means[:, 0] - means[:, 1]
    shares = np.divide(saved, base, out=np.zeros_like(base), where=base > 0)
    return percentile_interval(float(1 - after.mean() / before.mean()), shares, after - before)


def permutation_p(
    baseline: ArrayLike, candidate: ArrayLike, *, resamples: int = 10_000, seed: int = 0
) -> float:
    """Returns the two-sided p-value of a paired permutation test, in (0, 1].

    The two arms are exchangeable within a question. If they do not differ, only chance assigns a
    question's two scores (averaged over the seeds) to the arms, so the sign of every difference may
    be flipped. Questions are not exchangeable with each other, and neither are seeds: the test is
    about these trained policies, not about other seeds.

    The test is exact for up to `EXACT_UP_TO` questions whose scores differ. For more, flips are
    drawn, and p = (1 + flips at least as extreme) / (1 + flips), which is never 0 (Phipson and
    Smyth 2010).

    Args:
        baseline, candidate: Scores in the shapes of `crossed_bootstrap`; shape (questions,) is one
            seed.

    Raises:
        ValueError: If the arms cannot be paired, or a score is not a number.
    """
    # Average the seeds first: the answers to a question are one observation, however many seeds.
    by_question = paired_difference(baseline, candidate).mean(axis=1)
    # A flip of 0 changes no sum, so equal questions only multiply all counts by the same factor.
    moved = by_question[by_question != 0]
    # Sums that are equal up to rounding are equally extreme.
    bound = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()
    if len(moved) <= EXACT_UP_TO:
        return float((np.abs(_all_flipped_sums(moved)) >= bound).mean())
    rng = np.random.default_rng(to_uint32(seed))
    rows = max(1, _CHUNK_DRAWS // len(moved))
    extreme = 0
    for start in range(0, resamples, rows):
        signs = rng.integers(0, 2, size=(min(rows, resamples - start), len(moved))) * 2 - 1
        extreme += int((np.abs(signs @ moved) >= bound).sum())
    return (1 + extreme) / (1 + resamples)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the adjusted p-values of one family, in the given order (Holm 1979).

    The smallest of m is multiplied by m, the next by m − 1, and so on. An adjusted value is at
    least that of any smaller p, and at most 1. Rejecting values below α keeps the chance of any
    false rejection below α.

    Raises:
        ValueError: If a value is not in [0, 1].
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values must be in [0, 1]: {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    reached = 0.0  # the largest value so far, because adjusted values must keep the order of p
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = reached
    return adjusted


def _all_flipped_sums(values: np.ndarray) -> np.ndarray:
    """Returns the sums of `values` under all choices of their signs, shape (2 ** n,)."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums
