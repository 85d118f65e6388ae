"""The circuit breaker: when it opens, how it probes, and when it gives up."""

from engines.endpoint.breaker import CircuitBreaker


def broken(threshold: int = 3) -> CircuitBreaker:
    """One that has just opened, at time 0."""
    breaker = CircuitBreaker(first_pause_s=1.0, longest_pause_s=60.0, patience_s=600.0)
    opened = [breaker.record_failure("no", 0.0, threshold) for _ in range(threshold)]
    assert opened == [False] * (threshold - 1) + [True]
    return breaker


def test_an_answer_between_failures_keeps_it_closed() -> None:
    breaker = CircuitBreaker(1.0, 60.0, 600.0)
    for at in range(50):
        assert not breaker.record_failure("no", float(at), 3)
        assert not breaker.record_failure("no", float(at), 3)
        assert breaker.record_success(float(at)) is None
    assert not breaker.is_open


def test_pauses_between_probes_double_up_to_the_longest() -> None:
    breaker, pauses, now = broken(), [], 0.0
    for _ in range(9):
        pauses.append(breaker.probe_at - now)
        now = breaker.probe_at
        breaker.record_failure("no", now, 3, probe=True)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_of_calls_from_before_lengthen_no_pause() -> None:
    breaker = broken()
    for _ in range(5):
        assert not breaker.record_failure("no", 0.5, 3)
    assert breaker.probe_at == 1.0


def test_an_answer_closes_it_and_the_next_time_begins_anew() -> None:
    breaker = broken()
    breaker.record_failure("no", 1.0, 3, probe=True)
    assert breaker.record_success(43.0) == 43.0
    assert not breaker.is_open
    assert breaker.probe_at < 43.0
    assert [breaker.record_failure("no", 50.0, 3) for _ in range(3)] == [False, False, True]
    assert breaker.probe_at == 51.0


def test_it_gives_up_after_failures_alone_for_as_long_as_patience_goes() -> None:
    breaker = broken()
    breaker.record_failure("still no", 599.0, 3, probe=True)
    given_up = [breaker.given_up]
    breaker.record_failure("still no", 600.0, 3, probe=True)
    assert [*given_up, breaker.given_up] == [False, True]
    assert breaker.fault == "still no"
    breaker.record_success(601.0)
    assert not breaker.given_up


def test_a_time_when_nobody_asked_is_no_failing() -> None:
    breaker = broken()
    breaker.record_failure("no", 5000.0, 3)
    assert not breaker.given_up


def test_two_failures_far_apart_prove_nothing() -> None:
    breaker = CircuitBreaker(1.0, 60.0, patience_s=600.0)
    breaker.record_failure("slow", 0.0, 8)
    breaker.record_failure("slow", 600.0, 8)
    assert not breaker.given_up
    breaker.record_failure("slow", 601.0, 8)
    assert breaker.given_up
