"""The limit on calls in flight: when it grows, and when it is cut."""

import pytest

from engines.endpoint.concurrency import AdaptiveLimit


def succeed(limit: AdaptiveLimit, calls: int) -> None:
    """Makes `calls` successful calls, each while all slots are taken."""
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


def test_the_limit_grows_to_its_maximum_and_not_beyond() -> None:
    limit = AdaptiveLimit(100, first=32)
    succeed(limit, 8)
    assert limit.limit == 40
    succeed(limit, 200)
    assert limit.limit == 100
    assert AdaptiveLimit(4).limit == 4


def test_a_limit_that_is_not_used_up_does_not_grow() -> None:
    limit = AdaptiveLimit(100, first=32)
    for _ in range(50):
        slots = [limit.take() for _ in range(31)]
        limit.succeeded(slots[0])
        for _slot in slots:
            limit.give_back()
    assert limit.limit == 32


def test_an_overload_cuts_the_limit_once_and_slows_its_growth() -> None:
    limit = AdaptiveLimit(100, first=32)
    slots = [limit.take() for _ in range(32)]
    assert [limit.overloaded(slot) for slot in slots] == [True] + [False] * 31
    assert limit.limit == 16
    for slot in slots:  # they started before the cut, so they do not raise the new limit
        limit.succeeded(slot)
    assert limit.limit == 16
    for _slot in slots:
        limit.give_back()
    succeed(limit, 17)
    assert limit.limit == 17, "the limit grows by one per as many successes as slots"
    assert overload(limit), "an overload of a call made after the cut counts as a new one"
    assert limit.limit == 8


def test_a_limit_is_at_least_one() -> None:
    limit = AdaptiveLimit(8)
    assert all(overload(limit) for _ in range(9))
    assert limit.limit == 1


@pytest.mark.parametrize("troubles", [1, 5])
def test_errors_pause_growth_without_a_cut(troubles: int) -> None:
    limit = AdaptiveLimit(100, first=16)
    for _ in range(troubles):
        limit.record_error()
    succeed(limit, 16)
    assert limit.limit == 16
    succeed(limit, 1)
    assert limit.limit == 17
