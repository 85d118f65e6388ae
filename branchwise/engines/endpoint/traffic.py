"""Schedules all calls to one endpoint: how many at once, when they start, which are retried.

It combines the adaptive limit (`engines.endpoint.admission`), the pause requested by the
endpoint, the circuit breaker (`engines.endpoint.admission`) and the retry budget
(`engines.endpoint.retry`). All times are in the event loop's time.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from branchwise.base import EndpointError, ServerLost

from .admission import AdaptiveLimit, Admission, CircuitBreaker, Slot, loop_time
from .retry import RetryBudget, RetryPolicy, TransientError

T = TypeVar("T")

LONG_PAUSE_S = 30.0
"""Requested pauses at least this long are logged."""
_FEWEST_TO_OPEN, _MOST_TO_OPEN = 8, 20
"""Bounds on the failures in a row that open the breaker (twice the limit on calls)."""


@dataclass(slots=True)
class _Call:
    """A call in progress or waiting; `order` is its place in the queue."""

    order: int
    attempts: int = 0
    faults: int = 0
    failures: int = 0
    last_fault: str = ""


class RequestScheduler:
    """The calls to one endpoint; `send` makes one.

    Calls start in order of arrival. A retry first releases its slot, then starts before calls that
    have not started yet.

    Attributes:
        reached: Whether the endpoint has answered anything yet. Until then, a refused connection
            ends the run at once; afterwards calls wait for the endpoint.
        on_event: Callback for messages about pauses and recovery of the endpoint.
        limit: Calls in progress, and their limit.
        admission: Queue of waiting calls.
    """

    def __init__(
        self, url: str, max_concurrency: int, deadline_s: float, retry: RetryPolicy
    ) -> None:
        """Makes no call yet.

        Args:
            max_concurrency: Most calls in progress at once.
            deadline_s: Seconds from a call's first attempt, including retries and waits.
        """
        self.reached = False
        self.on_event: Callable[[str], None] = lambda _: None
        self.limit = AdaptiveLimit(max_concurrency)
        self._breaker = CircuitBreaker(retry)
        self.admission = Admission(self.limit, self._breaker)
        self._url = url
        self._deadline_s = deadline_s
        self._retry = retry
        self._budget = RetryBudget(retry, burst=max(10, max_concurrency))
        self._orders = itertools.count()
        self._jitter = random.Random()

    async def send(self, attempt: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Awaits `attempt` until it succeeds; returns its result and the number of attempts.

        Raises:
            EndpointError: If a fault is permanent, the last attempt failed, or the deadline passed;
                with the number of attempts. Fatal if all calls have failed for `patience_s`.
        """
        call = _Call(next(self._orders))
        slot = await self.admission.acquire(call.order)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._sent(call, slot, attempt), call.attempts
        except TimeoutError:
            overdue = self._overdue(call)
            self._count_failure(str(overdue))
            raise overdue from None
        except EndpointError as error:
            error.attempts = call.attempts
            raise

    async def _sent(self, call: _Call, slot: Slot, attempt: Callable[[], Awaitable[T]]) -> T:
        while True:
            call.attempts += 1
            try:
                reply = await attempt()
            except TransientError as fault:
                self._failed(slot, fault)
                pause_s = self._pause_s(call, slot, fault)
            except EndpointError:  # a permanent fault of this call: the endpoint itself works
                self.answered()
                raise
            else:
                self.limit.succeeded(slot)
                self._budget.succeeded()
                self.answered()
                return reply
            finally:
                # After the outcome is recorded, because the next call starts under the new limit;
                # before the pause, so that a call that waits does not occupy a slot.
                self.admission.release(slot)
            await self.admission.pause(pause_s)
            slot = await self.admission.acquire(call.order)

    def _pause_s(self, call: _Call, slot: Slot, fault: TransientError) -> float:
        """Returns the seconds until the next attempt; raises the error after the last attempt."""
        #                attempts  faults (backoff)  failures (max `retry.attempts`)  budget
        #   overload        +1           +1                  -                         -
        #   refused         +1           +1                  -                         -
        #   trouble         +1           +1                 +1                        -1
        # Rejections cost the server nothing, so only kind "trouble" is limited.
        if fault.kind == "refused" and self._retry.gives_way:
            raise ServerLost(str(fault)) from None
        if fault.kind == "refused" and not self.reached:
            raise fault.error from None
        call.faults += 1
        call.last_fault = str(fault)
        # Move a failed probe to the end of the queue, so that one bad call is not every probe.
        if slot.probe:
            call.order = next(self._orders)
        # Jitter spreads the retries of calls that a server rejected together. It is not needed if
        # the server sent Retry-After, because `_hold` delays all calls then.
        pause_s = 0.0 if fault.retry_after_s else self._retry.jitter_s(call.faults, self._jitter)
        if fault.kind != "trouble":
            return pause_s
        call.failures += 1
        if call.failures >= self._retry.attempts:
            attempts = f" ({call.attempts} attempts)" if call.attempts > 1 else ""
            raise EndpointError(f"{fault.error}{attempts}", fatal=fault.error.fatal) from None
        return max(pause_s, self._budget.take(loop_time()))

    def answered(self) -> None:
        """Records an answer, which closes the breaker."""
        failed_for_s = self._breaker.record_success(loop_time())
        if failed_for_s is not None:
            self.on_event(f"{self._url} recovered after {failed_for_s:.0f} s; resuming")

    def _failed(self, slot: Slot, fault: TransientError) -> None:
        self._hold(fault)
        if fault.kind == "overload":
            # Ignore further rejections of the same episode.
            if self.limit.overloaded(slot) or slot.probe:
                self._count_failure(str(fault), probe=slot.probe)
        else:
            self.limit.record_error()
            self._count_failure(str(fault), probe=slot.probe)

    def _count_failure(self, fault: str, *, probe: bool = False) -> None:
        threshold = min(max(2 * self.limit.limit, _FEWEST_TO_OPEN), _MOST_TO_OPEN)
        opened = self._breaker.record_failure(fault, loop_time(), threshold, probe=probe)
        if opened and self._retry.gives_way:
            self._breaker.given_up = True
        elif opened:
            self.on_event(
                f"{fault}; all calls are paused for up to {self._retry.patience_s:.0f} s, until "
                "the endpoint recovers"
            )

    def _hold(self, fault: TransientError) -> None:
        """Delays all calls until the server accepts them."""
        if not fault.retry_after_s:
            return
        pause_s = min(fault.retry_after_s, self._retry.longest_retry_after_s)
        if pause_s >= LONG_PAUSE_S and self.admission.held_until <= loop_time():
            self.on_event(f"{fault}; the server requested a pause. Calls resume in {pause_s:.0f} s")
        # Up to 10% later, so that processes do not resume at the same time.
        until = loop_time() + pause_s * (1.0 + 0.1 * self._jitter.random())
        self.admission.held_until = max(self.admission.held_until, until)

    def _overdue(self, call: _Call) -> EndpointError:
        last = call.last_fault or f"{self._url} did not answer in time"
        attempts = f", {call.attempts} attempts" if call.attempts > 1 else ""
        text = f"{last} (limits.deadline_s of {self._deadline_s:g} s exceeded{attempts})"
        return EndpointError(text, attempts=call.attempts)


def traffic_to(
    url: str, max_concurrency: int, deadline_s: float, retry: RetryPolicy
) -> RequestScheduler:
    """Returns the traffic to `url`, shared by all its current users in the same event loop.

    So policy and judge at one endpoint share its limit, pauses and breaker, if their bounds are
    equal.
    """
    key = (asyncio.get_running_loop(), url, max_concurrency, deadline_s, retry)
    traffic = _shared.get(key)
    if traffic is None:
        traffic = _shared[key] = RequestScheduler(url, max_concurrency, deadline_s, retry)
    return traffic


_Key = tuple[asyncio.AbstractEventLoop, str, int, float, RetryPolicy]
_shared: WeakValueDictionary[_Key, RequestScheduler] = WeakValueDictionary()
