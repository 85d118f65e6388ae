"""Decides when a call to an endpoint may start: a queue, the limit, pauses and the breaker."""

import asyncio
import heapq
import math
from collections.abc import Callable

from base.errors import BranchwiseError, EndpointError
from engines.endpoint.breaker import CircuitBreaker
from engines.endpoint.concurrency import AdaptiveLimit, Slot

_RECHECK_EVERY_S = 1.0


class Admission:
    """The queue of calls that wait for a slot, lowest order first.

    Attributes:
        before_attempt: Check that runs before a call starts, and every second during a pause. All
            waiting calls raise its error; calls in progress continue.
        held_until: Earliest start of the next call, in the event loop's time.
    """

    def __init__(self, limit: AdaptiveLimit, breaker: CircuitBreaker) -> None:
        self.before_attempt: Callable[[], None] = _let_through
        self.held_until = -math.inf
        self._limit = limit
        self._breaker = breaker
        self._waiting: list[tuple[int, asyncio.Future[Slot]]] = []
        self._recheck_timer: asyncio.TimerHandle | None = None

    async def acquire(self, order: int) -> Slot:
        """Waits until a call may start; `release` returns its slot.

        Args:
            order: Place in the queue; unique.

        Raises:
            EndpointError: If the breaker has given up (fatal).
            BranchwiseError: If `before_attempt` raises it.
        """
        waiter: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, waiter))
        self._admit()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())
            raise

    def release(self, slot: Slot) -> None:
        """Releases `slot`. Report the outcome to the limit and the breaker first."""
        self._limit.give_back()
        if slot.probe:
            self._breaker.probing = False
        self._admit()

    async def pause(self, seconds: float) -> None:
        """Sleeps, and runs `before_attempt` every second.

        Raises:
            BranchwiseError: If `before_attempt` raises it.
        """
        until = _now() + seconds
        while (left := until - _now()) > 0:
            self.before_attempt()
            await asyncio.sleep(min(left, _RECHECK_EVERY_S))

    def _admit(self) -> None:
        """Starts waiting calls in order, as far as slots are free."""
        # Runs after every change: a call entered, a slot was released, a timer fired. All waiters
        # need the same conditions, so if the head cannot start, no other can. Cancelled waiters
        # stay in the heap until they reach the head.
        if self._recheck_timer is not None:
            self._recheck_timer.cancel()
            self._recheck_timer = None
        while self._waiting:
            waiter = self._waiting[0][1]
            if not waiter.done():  # otherwise it was cancelled
                refusal = self._refusal()
                if refusal is not None:
                    waiter.set_exception(refusal)
                elif self._may_start():
                    waiter.set_result(self._take())
                else:
                    self._schedule_recheck()
                    return
            heapq.heappop(self._waiting)

    def _refusal(self) -> BranchwiseError | None:
        """Returns the error if no call may start any more, else None."""
        try:
            self.before_attempt()
        except BranchwiseError as error:
            return error
        if not self._breaker.given_up:
            return None
        return EndpointError(
            f"{self._breaker.fault}; every call has failed for {self._breaker.patience_s:.0f} s. "
            "Earlier replies are stored. Once the endpoint works, rerun the same command to resume",
            fatal=True,
        )

    def _may_start(self) -> bool:
        free = self._limit.has_room and not self._breaker.probing
        return free and self._opens_at() <= _now()

    def _take(self) -> Slot:
        self._breaker.probing = self._breaker.is_open
        return self._limit.take(probe=self._breaker.is_open)

    def _opens_at(self) -> float:
        return max(self.held_until, self._breaker.probe_at)

    def _schedule_recheck(self) -> None:
        """Sets a timer if the passage of time alone will let a call start."""
        now = _now()
        if self._opens_at() > now:
            when = min(self._opens_at(), now + _RECHECK_EVERY_S)
            self._recheck_timer = asyncio.get_running_loop().call_at(when, self._admit)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _let_through() -> None:
    """Allows every call."""
