"""Significance tests of the studies, compared with known results."""

from itertools import product

import numpy as np
import pytest

from branchwise.studies import significance
from branchwise.studies.significance import holm, permutation_p, relative_saving


@pytest.mark.parametrize("shape", [(200,), (200, 2)])
def test_five_differing_questions_are_not_significant(shape: tuple[int, ...]) -> None:
    base, own = np.zeros(shape), np.zeros(shape)
    own[:5] = 1
    assert permutation_p(base, own) == 2 / 2**5
    own[5] = 1
    assert permutation_p(base, own) < 0.05


def test_a_single_column_is_compared_with_every_seed() -> None:
    rng = np.random.default_rng(1)
    once, often = rng.random((30, 1)), rng.random((30, 4))
    assert permutation_p(once, often) == permutation_p(np.repeat(once, 4, axis=1), often)


def test_arrays_that_cannot_be_paired_raise_an_error() -> None:
    with pytest.raises(ValueError, match="pair"):
        permutation_p(np.zeros(1), np.zeros(2))
    with pytest.raises(ValueError, match="not a number"):
        permutation_p(np.zeros((3, 1)), np.full((3, 1), np.nan))


def test_permutation_p_by_hand() -> None:
    # Differences 1, 1, 1: of 8 sign flips, +3 and −3 are as extreme. Ties do not change p.
    assert permutation_p([0, 0, 0, 1, 0], [1, 1, 1, 1, 0]) == 2 / 8
    assert permutation_p([1, 1, 1, 1, 0], [0, 0, 0, 1, 0]) == 2 / 8, "two-sided"
    # 1, 1, −1: sums 3, 1, 1, 1 and their mirrors, observed 1.
    assert permutation_p([0, 0, 1], [1, 1, 0]) == 1.0
    # Two seeds: differences 0.5, 1, 1 (not 0, 1, 1, 1, 1, 1).
    assert permutation_p(np.zeros((3, 2)), [[0, 1], [1, 1], [1, 1]]) == 2 / 8
    assert permutation_p([1.0, 0.0], [1.0, 0.0]) == 1.0


def test_sampled_sign_flips_agree_with_full_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [0.9, 0.5, -0.2, 0.7, 0.1, 0.3, -0.4, 0.8, 0.6, 0.2, -0.1, 0.4]
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True))
            for signs in product((1, -1), repeat=12)]  # fmt: skip
    by_hand = sum(abs(one) >= sum(differences) - 1e-9 for one in sums) / 2**12
    assert permutation_p([0.0] * 12, differences) == pytest.approx(by_hand)
    assert 0.01 < by_hand < 0.05
    monkeypatch.setattr(significance, "EXACT_UP_TO", 0)
    monkeypatch.setattr(significance, "_CHUNK_DRAWS", 12 * 999)
    drawn = permutation_p([0.0] * 12, differences, resamples=40_000, seed=1)
    assert drawn == pytest.approx(by_hand, abs=0.004)
    assert permutation_p([0.0] * 12, [1.0] * 12, resamples=99) >= 1 / 100, "p is never 0"


def test_holm_by_hand() -> None:
    # Sorted 0.01 × 4, 0.02 × 3, 0.03 × 2 = 0.06, then 0.5 × 1.
    assert holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    # 0.04 × 2 = 0.08, and the adjusted value of 0.05 must not be smaller.
    assert holm([0.05, 0.04]) == pytest.approx([0.08, 0.08])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match="p-values"):
        holm([1.2])


def test_relative_saving_is_a_share_of_the_baseline_mean() -> None:
    found = relative_saving([4.0, 4.0, 8.0], [3.0, 3.0, 6.0], resamples=500)
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert (found.n, found.seeds) == (3, 1)
    # Ratio of means: 1 − 7 / 10. The mean over questions would be (0.5 + 0.25) / 2.
    assert relative_saving([2.0, 8.0], [1.0, 6.0], resamples=500).mean == pytest.approx(0.3)
    more = relative_saving([2.0, 2.0], [3.0, 3.0], resamples=500)
    assert (more.mean, more.high) == pytest.approx((-0.5, -0.5)), (
        "a larger count is a negative saving"
    )


def test_relative_saving_is_resampled_over_questions_and_seeds() -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(1, 9, size=(50, 3)).astype(float)
    found = relative_saving(base, 0.8 * base, resamples=500)
    assert (found.low, found.high) == pytest.approx((0.2, 0.2)), "both means are of the same sample"
    one_start = relative_saving(np.full((40, 1), 4.0), np.tile([2.0, 3.0, 4.0], (40, 1)))
    assert (one_start.mean, one_start.seeds) == (pytest.approx(0.25), 3)
    assert one_start.high - one_start.low > 0.3, "only the seeds differ, by a large amount"


def test_relative_saving_raises_if_the_baseline_mean_is_zero() -> None:
    with pytest.raises(ValueError, match="mean count is 0"):
        relative_saving([0.0, 0.0], [1.0, 0.0])
    # A bootstrap sample may have a baseline mean of 0.
    found = relative_saving([0.0] * 3 + [1.0], [0.0] * 4, resamples=200)
    assert (found.mean, found.low) == (1.0, 0.0)
