"""The limit on calls under way: when it grows, and when it is cut."""

import pytest

from engines.endpoint.concurrency import AdaptiveLimit


def succeed(limit: AdaptiveLimit, calls: int) -> None:
    """So many calls, each succeeding while all slots are taken."""
    for _ in range(calls):
        slots = [limit.take() for _ in range(limit.limit - limit.under_way)]
        limit.succeeded(slots[0])
        for _slot in slots:
            limit.give_back()


def overload(limit: AdaptiveLimit) -> bool:
    slot = limit.take()
    fresh = limit.overloaded(slot)
    limit.give_back()
    return fresh


def test_slow_start_up_to_the_most_and_never_beyond() -> None:
    limit = AdaptiveLimit(100, first=32)
    succeed(limit, 8)
    assert limit.limit == 40
    succeed(limit, 200)
    assert limit.limit == 100
    assert AdaptiveLimit(4).limit == 4


def test_what_is_not_used_does_not_grow() -> None:
    limit = AdaptiveLimit(100, first=32)
    for _ in range(50):
        slots = [limit.take() for _ in range(31)]
        limit.succeeded(slots[0])
        for _slot in slots:
            limit.give_back()
    assert limit.limit == 32


def test_one_cut_an_episode_and_slow_growth_after_it() -> None:
    limit = AdaptiveLimit(100, first=32)
    slots = [limit.take() for _ in range(32)]
    assert [limit.overloaded(slot) for slot in slots] == [True] + [False] * 31
    assert limit.limit == 16
    for slot in slots:  # they started before the cut, and say nothing of the new limit
        limit.succeeded(slot)
    assert limit.limit == 16
    for _slot in slots:
        limit.give_back()
    succeed(limit, 17)
    assert limit.limit == 17, "one more for as many successes as there are slots"
    assert overload(limit), "a call of after the cut begins a new episode"
    assert limit.limit == 8


def test_a_limit_is_at_least_one() -> None:
    limit = AdaptiveLimit(8)
    assert all(overload(limit) for _ in range(9))
    assert limit.limit == 1


@pytest.mark.parametrize("troubles", [1, 5])
def test_trouble_pauses_growth_and_cuts_nothing(troubles: int) -> None:
    limit = AdaptiveLimit(100, first=16)
    for _ in range(troubles):
        limit.record_error()
    succeed(limit, 16)
    assert limit.limit == 16
    succeed(limit, 1)
    assert limit.limit == 17
