"""Is the difference between two policies more than luck? A paired bootstrap interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_CHUNK_DRAWS = 2_000_000
"""Resampled items held at once (16 MB)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean difference with its percentile interval; `n` is the number of pairs."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    baseline: Sequence[float],
    other: Sequence[float],
    *,
    resamples: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """Mean of `other` − `baseline` over the same items, with a percentile bootstrap interval.

    Items (question × seed) are drawn with replacement, each with both of its scores.

    Args:
        baseline: one score an item, shape (n,).
        other: the scores of the same items in the same order, shape (n,).
        resamples: bootstrap samples.
        seed: of the draws; the same seed gives the same interval.
        confidence: coverage in (0, 1).

    Raises:
        ValueError: no items, or two different numbers of them.
    """
    if len(baseline) != len(other) or not baseline:
        raise ValueError(f"cannot pair {len(baseline)} scores with {len(other)}")
    difference = np.asarray(other, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    means = _resampled_means(difference, resamples, np.random.default_rng(seed))
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(difference.mean()), float(low), float(high), len(difference))


def _resampled_means(values: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means of `resamples` samples of `values` with replacement; shape (resamples,)."""
    n = len(values)
    rows = max(1, _CHUNK_DRAWS // n)
    chunks = [
        values[rng.integers(0, n, size=(min(rows, resamples - start), n))].mean(axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(chunks)
