"""Preferences of reward schedules, and the comparisons that `min_gap` silences."""

from collections import Counter
from typing import Any

import pytest

from branchwise.analysis.suppression import COMPARISONS, Compared, counts, simulate_suppression
from branchwise.rewards.settings import EvoRagSettings


def compared(
    max_steps: int = 10, *, min_gap: float = 0.2, overlap: float = 0.5, **settings: Any
) -> dict[tuple[str, int], Compared]:
    rows = simulate_suppression(
        EvoRagSettings.model_validate(settings), max_steps, min_gap=min_gap, overlap=overlap
    )
    found = {(row.comparison, row.t): row for row in rows}
    assert len(found) == len(rows)
    return found


def gaps(name: str, **settings: Any) -> list[float]:
    """Returns a comparison's gaps by t, from the first call at which both sides are possible."""
    return [row.gap for (comparison, _), row in compared(**settings).items() if comparison == name]


def test_all_gaps_at_one_policy_call_by_hand() -> None:
    # Refinement, T = 10, t = 2: β 0.9, γ 0.64, δ 0.6, ρ 0.5, η 0.06, κ 0.28;
    # t = 3: κ 0.37, η 0.065, ρ 0.5.
    by_hand = {
        "a right answer, a wrong one": 0.28,
        "a search that finds, one that misses": 2 * 0.9,
        "refusing rightly, a wrong answer": 0.5,
        "a right answer, refusing wrongly": 0.28 + 0.5,
        "a search that finds, taking back": 0.9 - 0.64 * 0.5 + 0.6,
        "finding and answering, refusing": 0.9 - 0.64 * 0.5 + 0.37 - 0.065 - 0.5,
        "answering, searching again first": 0.28 - (-0.64 * 0.5 - 0.065 + 0.37),
        "answering, taking back and refusing": 0.28 - (-0.6 - 0.065 + 0.5),
    }
    found = compared(stage="refinement")
    assert {c.name for c in COMPARISONS} == set(by_hand)
    assert {name: found[name, 2].gap for name in by_hand} == pytest.approx(by_hand)


def test_continuations_are_compared_at_calls_from_which_both_can_finish() -> None:
    last = {name: max(t for n, t in compared(5) if n == name) for name, _ in compared(5)}
    first = {name: min(t for n, t in compared(5) if n == name) for name, _ in compared(5)}
    assert last["a right answer, a wrong one"] == 4, "the last call can only answer"
    assert last["a right answer, refusing wrongly"] == 3, "but it cannot refuse"
    assert last["answering, searching again first"] == 3
    assert last["answering, taking back and refusing"] == 2
    assert first["a search that finds, one that misses"] == 0
    assert {first[name] for name in first if "search that finds, one" not in name} == {1}
    assert simulate_suppression(EvoRagSettings(), 1) == []


# Preferences that any recipe should have.


def test_papers_overlap_threshold_penalises_late_successful_searches() -> None:
    name = "finding and answering, refusing"
    assert min(gaps(name, max_steps=20, horizon=20)) > 0.2
    literal = compared(20, overlap_threshold=0.0)
    turned = [t for (n, t), row in literal.items() if n == name and row.outcome == "turned"]
    assert min(turned) == 6, "p = 0.3: refusing is preferred to a search that finds"


@pytest.mark.parametrize(("value", "sane"), [(-2.0, True), (-1.0, True), (-0.5, False)])
def test_step_value_decides_for_searches_with_little_overlap(value: float, sane: bool) -> None:
    # T = 10, t = 1, cosine 0.1: 0.19 − (0.28 − 0.057 − |value| · 0.06).
    found = gaps("answering, searching again first", step_value=value, overlap=0.1)[0]
    assert found == pytest.approx(-0.09 + 0.057 - value * 0.06)
    assert (found > 0) == sane


# Comparisons that the threshold silences.


def outcomes(name: str, **settings: Any) -> Counter[Any]:
    rows = list(compared(**settings).values())
    return counts(rows)[name]


@pytest.mark.parametrize(
    ("schedule", "stage", "expected"),
    [
        # κ is at most 0.1 in Discovery, and always in the middle of table 1.
        ("time-dynamic", "discovery", {"silenced": 9}),
        ("two-stage", "discovery", {"silenced": 9}),
        ("static", "discovery", {"silenced": 9}),
        ("static", "refinement", {"silenced": 9}),
        # 0.1 + 0.9 t / 10 reaches 0.2 from t = 2 on.
        ("time-dynamic", "refinement", {"silenced": 1, "kept": 8}),
        ("two-stage", "refinement", {"kept": 9}),
        ("answer-only", "discovery", {"kept": 9}),
        ("none", "refinement", {"silenced": 9}),
    ],
)
def test_threshold_silences_right_against_wrong_answers_by_schedule(
    schedule: str, stage: str, expected: dict[str, int]
) -> None:
    assert outcomes("a right answer, a wrong one", schedule=schedule, stage=stage) == expected


def test_a_larger_min_gap_silences_more_comparisons() -> None:
    name = "a right answer, a wrong one"
    assert outcomes(name, min_gap=0.3) == {"silenced": 2, "kept": 7}
