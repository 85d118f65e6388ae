"""The rules of a curriculum: when a stage stops, and which of its policies is best."""

import pytest

from branchwise.runs.curriculum.cycle import DevResult, best, stalled


def results(*ems: float, f1: tuple[float, ...] = ()) -> list[DevResult]:
    """Returns the results of the start policy of a stage and of its cycles, in order."""
    ties = f1 or (0.5,) * len(ems)
    return [DevResult(f"p{n}", "m", em, ties[n]) for n, em in enumerate(ems)]


@pytest.mark.parametrize(
    ("ems", "patience", "stops_after"),
    [
        ((0.3, 0.2, 0.1, 0.9), 2, 2),  # never above the start
        ((0.3, 0.4, 0.4, 0.4, 0.9), 2, 3),  # an equal EM is no improvement
        ((0.3, 0.2, 0.4, 0.3, 0.5, 0.1), 2, None),  # a new maximum every other cycle
        # Higher than the previous cycle, but not than the best.
        ((0.3, 0.4, 0.3, 0.35, 0.39), 2, 3),
        ((0.3, 0.3, 0.9), 1, 1),
        ((0.3, 0.1, 0.1, 0.1), 4, None),
    ],
)
def test_a_stage_stops_when_dev_em_stalls(
    ems: tuple[float, ...], patience: int, stops_after: int | None
) -> None:
    so_far = [results(*ems[: n + 1]) for n in range(len(ems))]
    stops = [len(one) - 1 for one in so_far if stalled(one, patience)]
    assert (stops[0] if stops else None) == stops_after


def test_the_best_policy_is_chosen_by_em_then_f1_then_order() -> None:
    assert best(results(0.3, 0.5, 0.4)).name == "p1"
    assert best(results(0.3, 0.3, 0.3, f1=(0.4, 0.6, 0.5))).name == "p1", "F1 breaks ties of EM"
    assert best(results(0.2, 0.3, 0.3, f1=(0.9, 0.5, 0.5))).name == "p1", (
        "the order breaks ties of both"
    )
    assert best(results(0.3, 0.2, 0.1)).name == "p0", "the start policy is a candidate"
