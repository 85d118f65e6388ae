"""Is the difference between two policies more than luck? Intervals, tests and Holm's correction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from branchwise.base import to_uint32

_CHUNK_DRAWS = 2_000_000
"""Maximum number of resampled items in memory (16 MB)."""

FEWEST_DIFFERING = 6
"""Fewest differing items that can show a difference: five in one direction have an exact p of
0.0625, but an interval that excludes 0.
"""

EXACT_UP_TO = 20
"""Maximum number of differing questions for an exact permutation test (a million sign flips)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean difference with its 95 % percentile interval.

    `n` is the number of pairs; with several seeds (`seeds`), the number of questions. `differing`
    of them have a difference.
    """

    mean: float
    low: float
    high: float
    n: int
    differing: int
    seeds: int = 1

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside, and enough pairs differ for resampling to be reliable."""
        return self.differing >= FEWEST_DIFFERING and (self.low > 0 or self.high < 0)


def crossed_bootstrap(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Returns the mean of `candidate` − `baseline` over questions × seeds, and its interval.

    Questions and seeds are drawn with replacement independently of each other, and a sample is
    every drawn question under every drawn seed (Owen 2007, "The pigeonhole bootstrap"). All
    questions of a seed share its luck, so drawing (question, seed) items would hide it. The
    deviations of the seeds are stretched by √(s / (s − 1)), because s seeds drawn from themselves
    show only (s − 1) / s of their variance.

    In simulations of 600 questions and three or five seeds that differ by an SD of 2 points, 93 to
    98 % of the intervals covered the truth (88 to 93 % if only questions are drawn). At an SD of 5
    points it was 92 % (73 to 78 %).

    Args:
        baseline: Scores of shape (questions, seeds); column j of both arms belongs to one training
            seed. An arm without seeds has shape (questions, 1) or (questions,), and is compared
            with every seed.
        candidate: Scores of the same questions in the same order.

    Raises:
        ValueError: If the arms cannot be paired, or a score is not a number.
    """
    difference = _paired_difference(baseline, candidate)
    means = _crossed_means([difference], resamples, np.random.default_rng(to_uint32(seed)))
    return _interval(float(difference.mean()), means[:, 0], difference)


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
    shape = _paired_difference(baseline, candidate).shape
    before, after = (np.broadcast_to(_columns(counts), shape) for counts in (baseline, candidate))
    if before.mean() <= 0:
        raise ValueError("the baseline's mean count is 0, so its saving is undefined")
    means = _crossed_means([before, after], resamples, np.random.default_rng(to_uint32(seed)))
    base, saved = means[:, 0], means[:, 0] - means[:, 1]
    shares = np.divide(saved, base, out=np.zeros_like(base), where=base > 0)
    return _interval(float(1 - after.mean() / before.mean()), shares, after - before)


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
    by_question = _paired_difference(baseline, candidate).mean(axis=1)
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


def _columns(scores: ArrayLike) -> np.ndarray:
    columns: np.ndarray = np.asarray(scores, dtype=np.float64)
    return columns.reshape(-1, 1) if columns.ndim == 1 else columns


def _paired_difference(baseline: ArrayLike, candidate: ArrayLike) -> np.ndarray:
    """Returns `candidate` − `baseline`, shape (questions, seeds).

    A single column is compared with every column of the other arm.
    """
    before, after = _columns(baseline), _columns(candidate)
    columns = {before.shape[-1], after.shape[-1]} - {1}
    problem = f"cannot pair scores of shape {before.shape} with {after.shape}"
    if before.ndim != 2 or after.ndim != 2 or len(before) != len(after) or len(columns) > 1:
        raise ValueError(problem)
    if not before.size or not after.size:
        raise ValueError(f"{problem}: no scores")
    difference: np.ndarray = after - before
    if not np.isfinite(difference).all():
        raise ValueError("a score is not a number; leave out items without a score in either arm")
    return difference


def _interval(mean: float, resampled: np.ndarray, difference: np.ndarray) -> Interval:
    """Returns `mean` with the percentile interval of its resampled values.

    Args:
        difference: Differences of shape (questions, seeds), for the interval's counts.
    """
    low, high = np.percentile(resampled, [2.5, 97.5])
    questions, seeds = difference.shape
    differing = int(difference.any(axis=1).sum())
    return Interval(mean, float(low), float(high), questions, differing, seeds)


def _all_flipped_sums(values: np.ndarray) -> np.ndarray:
    """Returns the sums of `values` under all choices of their signs, shape (2 ** n,)."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _crossed_means(
    blocks: Sequence[np.ndarray], resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the means of each block, (questions, seeds), over the same drawn questions and seeds.

    Returns:
        Means of shape (resamples, len(blocks)).
    """
    #              seed 0  seed 1  seed 2        1. draw questions (rows) with replacement, jointly
    #   question   x       x       x                for all blocks, so differences stay paired
    #   ...        column means after step 1     2. draw seeds (columns) with replacement from those
    # Drawing (question, seed) cells instead would treat one training's luck as independent noise.
    seeds = blocks[0].shape[1]
    spread = np.concatenate([_scale_seed_deviations(block) for block in blocks], axis=1)
    by_seed = _resampled_means(spread, resamples, rng).reshape(resamples, len(blocks), seeds)
    seed_draws = rng.integers(0, seeds, size=(resamples, 1, seeds))
    means: np.ndarray = np.take_along_axis(by_seed, seed_draws, axis=2).mean(axis=2)
    return means


def _scale_seed_deviations(scores: np.ndarray) -> np.ndarray:
    """Scales the deviations of the seeds by √(s / (s − 1)) (see `crossed_bootstrap`)."""
    seeds = scores.shape[1]
    if seeds == 1:
        return scores
    stretch = (seeds / (seeds - 1)) ** 0.5 - 1
    stretched: np.ndarray = scores + stretch * (scores.mean(axis=0) - scores.mean())
    return stretched


def _resampled_means(values: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the means over `resamples` samples of the rows of `values` with replacement.

    Args:
        values: Rows of shape (n, columns).

    Returns:
        Means of shape (resamples, columns).
    """
    # In chunks, because a sample copies all rows: 10,000 of them at once would take gigabytes.
    n = len(values)
    rows = max(1, _CHUNK_DRAWS // values.size)
    chunks = [
        values[rng.integers(0, n, size=(min(rows, resamples - start), n))].mean(axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(chunks)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval for a share of `n` independent trials, in [0, 1]."""
    z = NormalDist().inv_cdf(0.975)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)
