"""Scheduling of all calls to one endpoint, against simulated servers in virtual time."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from virtual_time import in_virtual_time, now

from branchwise.base.errors import BudgetExceeded, EndpointError
from branchwise.engines.endpoint.retry import FaultKind, RetryPolicy, TransientError
from branchwise.engines.endpoint.traffic import RequestScheduler, traffic_to


def fault(kind: FaultKind = "trouble", retry_after_s: float | None = None) -> TransientError:
    text = {"overload": "429", "refused": "refused", "trouble": "500"}[kind]
    return TransientError(EndpointError(text, fatal=kind == "refused"), kind, retry_after_s)


@dataclass
class Server:
    """Answers a call after `latency_s`; `meet` may raise a fault first, given the call's name.

    Attributes:
        log: Name and time of every attempt.
        under_way: Number of calls being answered.
        most: Highest number of calls being answered at once.
        busy_s: Seconds of work, summed over calls.
    """

    meet: Callable[[object], None] = lambda _: None
    latency_s: float = 2.0
    log: list[tuple[object, float]] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    busy_s: float = 0.0

    async def attempt(self, name: object) -> object:
        self.log.append((name, now()))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        begin = now()
        try:
            self.meet(name)
            await asyncio.sleep(self.latency_s)
            return name
        finally:
            self.under_way -= 1
            self.busy_s += now() - begin

    async def send(self, traffic: RequestScheduler, name: object) -> object:
        reply, _ = await traffic.send(lambda: self.attempt(name))
        return reply


def traffic(
    most: int = 256, deadline_s: float = 900.0, **policy: Any
) -> tuple[RequestScheduler, list[str]]:
    made = RequestScheduler("http://server", most, deadline_s, RetryPolicy(**policy))
    said: list[str] = []
    made.on_event = said.append
    made.reached = True
    return made, said


async def all_of(server: Server, through: RequestScheduler, calls: int, at_once: int) -> float:
    """Makes `calls` calls, `at_once` of them in flight; returns the seconds that they took."""
    names, begin = iter(range(calls)), now()

    async def one_after_another() -> None:
        for name in names:
            assert await server.send(through, name) == name

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return now() - begin


def test_a_fast_endpoint_is_kept_at_full_concurrency() -> None:
    async def run() -> None:
        server, (through, said) = Server(), traffic(most=256)
        seconds = await all_of(server, through, calls=20_000, at_once=400)
        assert server.most == through.limit.limit == 256
        assert server.busy_s / (256 * seconds) > 0.95
        assert said == []

    in_virtual_time(run())


def test_concurrency_adapts_to_a_small_server_and_no_call_is_lost() -> None:
    async def run() -> None:
        def full(_: object) -> None:
            if server.under_way > 40:
                raise fault("overload")

        server, (through, _) = Server(full), traffic(most=256)
        seconds = await all_of(server, through, calls=5_000, at_once=300)
        assert len(server.log) < 1.05 * 5_000, "few calls may be refused"
        assert server.busy_s / (40 * seconds) > 0.7
        assert through.limit.limit <= 48

    in_virtual_time(run())


@pytest.mark.parametrize("kind", ["overload", "trouble"])
def test_no_call_starts_during_a_pause_that_the_server_requests(kind: FaultKind) -> None:
    async def run() -> None:
        def busy(_: object) -> None:
            if now() < 50 and len(server.log) > 2:
                raise fault(kind, retry_after_s=30.0)

        server, (through, said) = Server(busy, latency_s=1.0), traffic(most=4)
        await all_of(server, through, calls=12, at_once=6)
        starts = sorted({at for _, at in server.log})
        assert starts[1] - starts[0] >= 30
        assert starts[2] - starts[1] >= 30
        assert any("requested a pause" in line for line in said)

    in_virtual_time(run())


def test_a_requested_pause_is_capped() -> None:
    async def run() -> None:
        def busy(_: object) -> None:
            if len(server.log) == 1:
                raise fault("overload", retry_after_s=1e12)

        server, (through, _) = Server(busy), traffic()
        await server.send(through, "a")
        (_, first), (_, second) = server.log
        assert 120 <= second - first <= 132

    in_virtual_time(run())


def test_overload_replies_do_not_count_as_attempts() -> None:
    async def run() -> None:
        def crowded(name: object) -> None:
            if name == "a" and [one for one, _ in server.log].count("a") < 8:
                raise fault("overload")

        server, (through, _) = Server(crowded, latency_s=0.1), traffic(most=2)
        others = asyncio.gather(*(server.send(through, i) for i in range(200)))
        reply, attempts = await through.send(lambda: server.attempt("a"))
        await others
        assert reply == "a"
        assert attempts == 8 > RetryPolicy().attempts

    in_virtual_time(run())


def test_a_call_waiting_for_its_retry_releases_its_slot() -> None:
    async def run() -> None:
        def once(name: object) -> None:
            if name == "a" and len(server.log) == 1:
                raise fault()

        server = Server(once, latency_s=0.01)
        through, _ = traffic(most=1, base_s=100.0, cap_s=100.0)
        await asyncio.gather(server.send(through, "a"), server.send(through, "b"))
        assert [name for name, _ in server.log] == ["a", "b", "a"]
        assert server.most == 1

    in_virtual_time(run())


def test_calls_pause_during_an_outage_with_few_probes() -> None:
    async def run() -> None:
        def down(_: object) -> None:
            if 10 <= now() < 300:
                raise fault("refused")

        server, (through, said) = Server(down), traffic(most=64)
        await all_of(server, through, calls=2_000, at_once=200)
        meanwhile = [at for _, at in server.log if 11 <= at < 300]
        assert len(meanwhile) <= 64 + 10, (
            "calls in flight at the start of the outage, then single probes"
        )
        assert len(said) == 2
        assert "all calls are paused" in said[0]
        assert "recovered after" in said[1]

    in_virtual_time(run())


def test_an_outage_longer_than_the_patience_is_fatal() -> None:
    async def run() -> None:
        def down(_: object) -> None:
            if now() >= 10:
                raise fault()

        server, (through, _) = Server(down), traffic(most=64)
        calls = [server.send(through, name) for name in range(400)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        errors = [error for error in ended if isinstance(error, EndpointError)]
        assert errors
        assert all(error.fatal for error in errors)
        assert "500; every call has failed for 600 s" in str(errors[0])
        assert now() < 10 + 600 + 130

    in_virtual_time(run())


def test_an_exhausted_quota_is_fatal() -> None:
    async def run() -> None:
        def spent(_: object) -> None:
            raise fault("overload", retry_after_s=86_400.0)

        server, (through, _) = Server(spent), traffic(most=64)
        calls = [server.send(through, name) for name in range(400)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, EndpointError) and error.fatal for error in ended)
        assert now() < 900
        assert len(server.log) < 100

    in_virtual_time(run())


@pytest.mark.parametrize("others", [0, 50])
def test_a_call_that_always_fails_fails_alone(others: int) -> None:
    async def run() -> None:
        def poison(name: object) -> None:
            if isinstance(name, str):
                raise fault()

        server, (through, _) = Server(poison), traffic(most=2)
        calls = [server.send(through, name) for name in (*range(others), "a", "b", "c", "d")]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert ended[:others] == list(range(others))
        for error in ended[others:]:
            assert isinstance(error, EndpointError)
            assert not error.fatal
            assert error.attempts == RetryPolicy().attempts
            assert "4 attempts" in str(error)

    in_virtual_time(run())


def test_retries_are_limited_to_a_share_of_the_successes() -> None:
    async def run() -> None:
        chance = random.Random(0)

        def flaky(_: object) -> None:
            if chance.random() < 0.3:
                raise fault()

        server, (through, _) = Server(flaky, latency_s=0.1), traffic(most=16, attempts=100)
        seconds = await all_of(server, through, calls=2_000, at_once=64)
        assert len(server.log) - 2_000 <= 16 + 0.1 * 2_000 + 2.0 * seconds + 1

    in_virtual_time(run())


def test_a_call_fails_at_its_deadline_while_it_waits_for_a_retry() -> None:
    async def run() -> None:
        def unlucky(name: object) -> None:
            if name == "a":
                raise fault("overload")

        server, (through, _) = Server(unlucky), traffic(most=8, deadline_s=50.0)
        others = asyncio.gather(*(server.send(through, i) for i in range(400)))
        with pytest.raises(EndpointError, match=r"429 \(limits.deadline_s of 50 s exceeded") as e:
            await server.send(through, "a")
        assert not e.value.fatal
        assert e.value.attempts > 1
        assert len(await others) == 400, "the deadline must not include the wait for the first slot"

    in_virtual_time(run())


def test_no_attempt_starts_once_the_run_drains() -> None:
    async def run() -> None:
        drained = False

        def gate() -> None:
            if drained:
                raise BudgetExceeded("stop")

        def turned_away(name: object) -> None:
            if name == "held":
                raise fault("overload", retry_after_s=100.0)

        server, (through, _) = Server(turned_away, latency_s=5.0), traffic(most=3)
        through.admission.before_attempt = gate
        calls = [asyncio.ensure_future(server.send(through, i)) for i in (1, 2, "held", 3, 4)]
        await asyncio.sleep(2.0)
        drained = True
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert ended[:2] == [1, 2], "calls in flight must finish"
        assert all(isinstance(error, BudgetExceeded) for error in ended[2:])
        assert [name for name, _ in server.log] == [1, 2, "held"]
        assert now() == 5.0

    in_virtual_time(run())


@pytest.mark.parametrize("kind", ["overload", "trouble"])
def test_waiting_calls_stop_within_a_second_of_the_drain(kind: FaultKind) -> None:
    async def run() -> None:
        drained = False

        def gate() -> None:
            if drained:
                raise BudgetExceeded("stop")

        def down(_: object) -> None:
            raise fault(kind, retry_after_s=100.0 if kind == "overload" else None)

        through, _ = traffic(base_s=500.0, cap_s=500.0)
        through.admission.before_attempt = gate
        call = asyncio.ensure_future(Server(down).send(through, "a"))
        await asyncio.sleep(0.5)
        drained = True
        with pytest.raises(BudgetExceeded):
            await call
        assert now() <= 1.5

    in_virtual_time(run())


def test_a_slot_given_to_a_call_being_cancelled_is_not_lost() -> None:
    async def run() -> None:
        through, _ = traffic(most=1)
        slot = await through.admission.acquire(0)
        waiting = asyncio.ensure_future(through.admission.acquire(1))
        await asyncio.sleep(0)
        through.admission.release(slot)
        assert waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert through.limit.under_way == 0

    in_virtual_time(run())


def test_a_refused_first_contact_is_fatal_at_once() -> None:
    async def run() -> None:
        def absent(_: object) -> None:
            raise fault("refused")

        through, _ = traffic()
        through.reached = False
        with pytest.raises(EndpointError, match="refused") as caught:
            await Server(absent).send(through, "a")
        assert caught.value.fatal
        assert now() == 0.0

    in_virtual_time(run())


def test_a_rejected_request_counts_as_an_answer_and_keeps_calls_running() -> None:
    async def run() -> None:
        def picky(name: object) -> None:
            if isinstance(name, str):
                raise EndpointError("400: too long")
            raise fault()

        server, (through, said) = Server(picky), traffic(most=1, base_s=0.0)
        names = [name for i in range(3) for name in (i, *(f"too long {i}.{j}" for j in range(4)))]
        ended = await asyncio.gather(
            *(server.send(through, name) for name in names), return_exceptions=True
        )
        assert all(isinstance(error, EndpointError) for error in ended)
        assert said == []

    in_virtual_time(run())


def test_cancelled_calls_leave_no_slot_taken() -> None:
    async def run() -> None:
        server, (through, _) = Server(latency_s=10.0), traffic(most=4)
        calls = [asyncio.ensure_future(server.send(through, i)) for i in range(40)]
        await asyncio.sleep(11.0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert through.limit.under_way == 0
        assert [call.result() for call in calls[1::2]] == list(range(1, 40, 2))

    in_virtual_time(run())


def test_policy_and_judge_at_one_endpoint_share_its_limit() -> None:
    async def run() -> None:
        policy = traffic_to("http://server", 4, 900.0, RetryPolicy())
        assert policy is traffic_to("http://server", 4, 900.0, RetryPolicy())
        assert policy is not traffic_to("http://another", 4, 900.0, RetryPolicy())

    in_virtual_time(run())
