"""Confidence intervals and significance tests, compared with known results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.analysis import significance
from branchwise.analysis.significance import crossed_bootstrap, wilson


def test_identical_policies_have_a_difference_of_zero() -> None:
    found = crossed_bootstrap([1, 0, 1, 0.5], [1, 0, 1, 0.5], resamples=500)
    assert (found.mean, found.low, found.high, found.n) == (0.0, 0.0, 0.0, 4)
    assert not found.excludes_zero


@pytest.mark.parametrize("shape", [(6,), (60, 3)])
def test_a_constant_shift_has_an_interval_of_width_zero(shape: tuple[int, ...]) -> None:
    base = np.random.default_rng(2).random(shape)
    found = crossed_bootstrap(base, base + 0.05, resamples=500)
    assert (found.mean, found.low, found.high) == pytest.approx((0.05, 0.05, 0.05))
    assert found.excludes_zero


@pytest.mark.parametrize("shape", [(200,), (200, 2)])
def test_five_differing_questions_are_not_significant(shape: tuple[int, ...]) -> None:
    base, own = np.zeros(shape), np.zeros(shape)
    own[:5] = 1
    found = crossed_bootstrap(base, own)
    assert found.low > 0
    assert not found.excludes_zero
    own[5] = 1
    assert crossed_bootstrap(base, own).excludes_zero


def test_interval_width_agrees_with_the_normal_approximation() -> None:
    # 40 wins, 20 losses, 340 ties: mean 0.05, SD² = 60/400 − 0.05², standard error 0.01920.
    other = [1.0] * 40 + [0.0] * 20 + [0.0] * 340
    base = [0.0] * 40 + [1.0] * 20 + [0.0] * 340
    found = crossed_bootstrap(base, other, resamples=20_000, seed=1)
    assert found.mean == pytest.approx(0.05)
    assert found.low == pytest.approx(0.05 - 1.96 * 0.0192, abs=0.003)
    assert found.high == pytest.approx(0.05 + 1.96 * 0.0192, abs=0.003)


def test_intervals_depend_on_the_seed_and_not_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    base, other = [0, 1, 1, 0, 0, 1, 0], [1, 1, 0, 1, 0, 1, 1]
    first = crossed_bootstrap(base, other, resamples=1_000, seed=5)
    assert first == crossed_bootstrap(base, other, resamples=1_000, seed=5)
    monkeypatch.setattr(significance, "_CHUNK_DRAWS", 70)
    assert first == crossed_bootstrap(base, other, resamples=1_000, seed=5)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
@settings(max_examples=50)
def test_swapping_the_policies_mirrors_the_mean(pairs: list[tuple[float, float]]) -> None:
    base, other = zip(*pairs, strict=True)
    there = crossed_bootstrap(base, other, resamples=200)
    back = crossed_bootstrap(other, base, resamples=200)
    assert there.mean == pytest.approx(-back.mean)
    assert there.low == pytest.approx(-back.high)
    assert -1 - 1e-9 <= there.low <= there.high <= 1 + 1e-9


def test_seeds_that_agree_do_not_widen_the_interval() -> None:
    base, other = np.zeros((40, 3)), np.repeat(_column([0.0, 1.0] * 20), 3, axis=1)
    crossed = crossed_bootstrap(base, other, resamples=2_000)
    alone = crossed_bootstrap([0.0] * 40, [0.0, 1.0] * 20, resamples=2_000)
    assert (crossed.mean, crossed.n, crossed.seeds) == (0.5, 40, 3)
    assert (crossed.low, crossed.high) == pytest.approx((alone.low, alone.high), abs=0.03)


def test_crossed_bootstrap_covers_the_variance_between_seeds() -> None:
    """Simulates policies without a true difference whose trainings have an SD of 4 points."""
    rng = np.random.default_rng(0)
    covered = {"crossed": 0, "questions": 0}
    for number in range(150):
        lucky = rng.normal(0, 0.04, size=5)
        won, lost = rng.random((2, 300, 5))
        scores = (won < 0.1 + lucky / 2).astype(float) - (lost < 0.1 - lucky / 2)
        crossed = crossed_bootstrap(np.zeros((300, 1)), scores, resamples=300, seed=number)
        alone = crossed_bootstrap([0.0] * 300, [*scores.mean(axis=1)], resamples=300, seed=number)
        covered["crossed"] += crossed.low <= 0 <= crossed.high
        covered["questions"] += alone.low <= 0 <= alone.high
    assert covered["crossed"] >= 0.9 * 150
    assert covered["questions"] < 0.85 * 150


def test_interval_over_two_seeds_has_the_variance_of_the_trainings() -> None:
    """Half of the samples draw one seed twice, so the half-width is its deviation times √2."""
    found = crossed_bootstrap(np.zeros((30, 1)), np.tile([0.0, 0.2], (30, 1)), resamples=2_000)
    half = 0.1 * 2**0.5
    assert (found.low, found.high) == (pytest.approx(0.1 - half), pytest.approx(0.1 + half))


def test_a_single_column_is_compared_with_every_seed() -> None:
    rng = np.random.default_rng(1)
    once, often = rng.random((30, 1)), rng.random((30, 4))
    whole = np.repeat(once, 4, axis=1)
    assert crossed_bootstrap(once, often) == crossed_bootstrap(whole, often)
    there, back = crossed_bootstrap(once, often), crossed_bootstrap(often, once)
    assert there.mean == pytest.approx(float((often - once).mean()))
    assert there.mean == pytest.approx(-back.mean)


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (np.zeros(0), np.zeros(0)),
        (np.zeros(1), np.zeros(2)),
        (np.zeros((3, 2)), np.zeros((3, 3))),
        (np.zeros((3, 1)), np.zeros((4, 1))),
        (np.zeros((0, 2)), np.zeros((0, 2))),
        (np.zeros((3, 1)), np.full((3, 1), np.nan)),
        (np.zeros((3, 1, 1)), np.zeros((3, 1, 1))),
    ],
)
def test_arrays_that_cannot_be_paired_raise_an_error(base: np.ndarray, other: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"pair|not a number"):
        crossed_bootstrap(base, other)


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (0.9, 200, 0.8506, 0.9343)],
)
def test_wilson_interval_agrees_with_published_tables(
    share: float, n: int, low: float, high: float
) -> None:
    assert wilson(share, n) == pytest.approx((low, high), abs=1e-4)


def _column(scores: list[float]) -> np.ndarray:
    return np.array(scores)[:, None]
