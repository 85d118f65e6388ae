"""The paired bootstrap against cases with known answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import significance
from evaluation.significance import paired_bootstrap


def test_identical_policies_differ_by_nothing() -> None:
    found = paired_bootstrap([1, 0, 1, 0.5], [1, 0, 1, 0.5], resamples=500)
    assert (found.mean, found.low, found.high, found.n) == (0.0, 0.0, 0.0, 4)
    assert not found.excludes_zero


def test_a_constant_shift_has_no_spread() -> None:
    base = [0.1, 0.9, 0.4, 0.2]
    found = paired_bootstrap(base, [x + 0.05 for x in base], resamples=500)
    assert (found.mean, found.low, found.high) == pytest.approx((0.05, 0.05, 0.05))
    assert found.excludes_zero


def test_width_is_that_of_the_normal_approximation() -> None:
    # 40 wins, 20 losses, 340 ties: mean 0.05, SD² = 60/400 − 0.05², standard error 0.01920.
    other = [1.0] * 40 + [0.0] * 20 + [0.0] * 340
    base = [0.0] * 40 + [1.0] * 20 + [0.0] * 340
    found = paired_bootstrap(base, other, resamples=20_000, seed=1)
    assert found.mean == pytest.approx(0.05)
    assert found.low == pytest.approx(0.05 - 1.96 * 0.0192, abs=0.003)
    assert found.high == pytest.approx(0.05 + 1.96 * 0.0192, abs=0.003)


def test_pairing_matters() -> None:
    # The same scores in another order: unpaired they agree, paired they differ in every item.
    found = paired_bootstrap([0, 1] * 50, [1, 0] * 50, resamples=2_000)
    assert found.mean == 0.0
    assert found.high > 0.1


def test_reproducible_by_seed_and_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    base, other = [0, 1, 1, 0, 0, 1, 0], [1, 1, 0, 1, 0, 1, 1]
    first = paired_bootstrap(base, other, resamples=1_000, seed=5)
    assert first == paired_bootstrap(base, other, resamples=1_000, seed=5)
    monkeypatch.setattr(significance, "_CHUNK_DRAWS", 70)
    assert first == paired_bootstrap(base, other, resamples=1_000, seed=5)


@pytest.mark.parametrize(("base", "other"), [([], []), ([1.0], [1.0, 0.0])])
def test_what_cannot_be_paired_is_refused(base: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match="pair"):
        paired_bootstrap(base, other)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
@settings(max_examples=50)
def test_swapping_the_policies_mirrors_the_mean(pairs: list[tuple[float, float]]) -> None:
    base, other = zip(*pairs, strict=True)
    there = paired_bootstrap(base, other, resamples=200)
    back = paired_bootstrap(other, base, resamples=200)
    assert there.mean == pytest.approx(-back.mean)
    assert there.low == pytest.approx(-back.high)
    assert -1 - 1e-9 <= there.low <= there.high <= 1 + 1e-9
