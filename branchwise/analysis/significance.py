"""Is the difference between two policies more than luck? Intervals."""

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
    baseline: ArrayLike, candidate: ArrayLike, *, resamples: int = 10_000, seed: int = 0
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
    difference = paired_difference(baseline, candidate)
    means = crossed_means([difference], resamples, np.random.default_rng(to_uint32(seed)))
    return percentile_interval(float(difference.mean()), means[:, 0], difference)


def _columns(scores: ArrayLike) -> np.ndarray:
    columns: np.ndarray = np.asarray(scores, dtype=np.float64)
    return columns.reshape(-1, 1) if columns.ndim == 1 else columns


def paired_difference(baseline: ArrayLike, candidate: ArrayLike) -> np.ndarray:
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


def percentile_interval(mean: float, resampled: np.ndarray, difference: np.ndarray) -> Interval:
    """Returns `mean` with the percentile interval of its resampled values.

    Args:
        difference: Differences of shape (questions, seeds), for the interval's counts.
    """
    low, high = np.percentile(resampled, [2.5, 97.5])
    questions, seeds = difference.shape
    differing = int(difference.any(axis=1).sum())
    return Interval(mean, float(low), float(high), questions, differing, seeds)


def crossed_means(
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
