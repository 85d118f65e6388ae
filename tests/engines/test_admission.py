"""Admission of calls: the circuit breaker and the limit on calls in progress."""

import pytest

from branchwise.engines.endpoint.admission import AdaptiveLimit, CircuitBreaker
from branchwise.engines.endpoint.retry import RetryPolicy


def open_breaker(threshold: int = 3) -> CircuitBreaker:
    """Returns a circuit breaker that has just opened, at time 0."""
    breaker = CircuitBreaker(RetryPolicy())
    opened = [breaker.record_failure("no", 0.0, threshold) for _ in range(threshold)]
    assert opened == [False] * (threshold - 1) + [True]
    return breaker


def test_a_success_between_failures_keeps_the_breaker_closed() -> None:
    breaker = CircuitBreaker(RetryPolicy())
    for at in range(50):
        assert not breaker.record_failure("no", float(at), 3)
        assert not breaker.record_failure("no", float(at), 3)
        assert breaker.record_success(float(at)) is None
    assert not breaker.is_open


def test_pauses_between_probes_double_up_to_the_longest() -> None:
    breaker, pauses, now = open_breaker(), [], 0.0
    for _ in range(9):
        pauses.append(breaker.probe_at - now)
        now = breaker.probe_at
        breaker.record_failure("no", now, 3, probe=True)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_of_calls_in_flight_do_not_lengthen_the_pause() -> None:
    breaker = open_breaker()
    for _ in range(5):
        assert not breaker.record_failure("no", 0.5, 3)
    assert breaker.probe_at == 1.0


def test_a_success_closes_the_breaker_and_resets_its_pause() -> None:
    breaker = open_breaker()
    breaker.record_failure("no", 1.0, 3, probe=True)
    breaker.probing = True
    assert breaker.record_success(43.0) == 43.0
    assert not breaker.is_open
    assert not breaker.probing, "no call waits for a probe that is still open"
    assert breaker.probe_at < 43.0
    assert [breaker.record_failure("no", 50.0, 3) for _ in range(3)] == [False, False, True]
    assert breaker.probe_at == 51.0


def test_the_breaker_gives_up_when_all_calls_fail_for_patience_s() -> None:
    breaker = open_breaker()
    breaker.record_failure("still no", 599.0, 3, probe=True)
    given_up = [breaker.given_up]
    breaker.record_failure("still no", 600.0, 3, probe=True)
    assert [*given_up, breaker.given_up] == [False, True]
    assert breaker.fault == "still no"
    breaker.record_success(601.0)
    assert not breaker.given_up


def test_time_without_calls_does_not_count_as_failing() -> None:
    breaker = open_breaker()
    breaker.record_failure("no", 5000.0, 3)
    assert not breaker.given_up


def test_two_failures_far_apart_do_not_make_it_give_up() -> None:
    breaker = CircuitBreaker(RetryPolicy(patience_s=600.0))
    breaker.record_failure("slow", 0.0, 8)
    breaker.record_failure("slow", 600.0, 8)
    assert not breaker.given_up
    breaker.record_failure("slow", 601.0, 8)
    assert breaker.given_up


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
