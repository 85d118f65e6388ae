"""Decides when a call to an endpoint may start: a queue, a limit, pauses and a circuit breaker.

The limit on calls in progress grows additively and is halved once per overload. The breaker stops
calls to a failing endpoint until it recovers.
"""

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from branchwise.base import BranchwiseError, EndpointError, ServerLost

from .retry import RetryPolicy

FIRST_LIMIT = 32
"""Initial limit on calls in progress, before anything is known about the endpoint."""
_RECHECK_EVERY_S = 1.0


class CircuitBreaker:
    """Opens after enough failures in a row; while open, allows one probe at a time.

    Pauses before probes double from `first_probe_s` to at most `longest_probe_s`. Any answer
    closes the breaker. Times are in seconds, by the caller's clock.

    Attributes:
        policy: The pauses, and `patience_s`.
        is_open: Whether only probes may start.
        probe_at: Earliest start of the next probe; in the past while the breaker is closed.
        probing: Whether a probe is in progress.
        fault: Message of the last failure; empty without one.
        given_up: Whether all calls have failed for `patience_s`.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.is_open = False
        self.probe_at = -math.inf
        self.probing = False
        self.fault = ""
        self.given_up = False
        self._pause_s = policy.first_probe_s
        self._failures = 0
        self._failing_since = 0.0
        self._failed_at = -math.inf

    def record_success(self, now: float) -> float | None:
        """Records a success.

        Returns the seconds for which the endpoint failed, if the success closes the breaker.
        """
        failed_for_s = now - self._failing_since if self.is_open else None
        self.is_open, self.given_up, self.probing = False, False, False
        self.probe_at, self.fault, self._failures = -math.inf, "", 0
        return failed_for_s

    def record_failure(
        self, fault: str, now: float, threshold: int, *, probe: bool = False
    ) -> bool:
        """Records a failure. Returns whether it opens the breaker.

        Args:
            fault: Message of the failure.
            now: Current time.
            threshold: Failures in a row that open the breaker.
            probe: Whether the probe failed, which makes the next pause longer.
        """
        # After a gap longer than `patience_s`, start counting from zero: no calls were made.
        if not self._failures or now - self._failed_at > self.policy.patience_s:
            self._failures, self._failing_since = 0, now
        self._failures += 1
        self._failed_at = now
        # One or two failures are not enough evidence, however far apart they are.
        if self._failures > 2 and now - self._failing_since >= self.policy.patience_s:
            self.given_up = True
        self.fault = fault
        if self.is_open:
            if probe:
                self._pause_s = min(2 * self._pause_s, self.policy.longest_probe_s)
                self.probe_at = now + self._pause_s
            return False
        if self._failures < threshold:
            return False
        self.is_open = True
        self._pause_s = self.policy.first_probe_s
        self.probe_at = now + self._pause_s
        return True


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one call among those in progress.

    Attributes:
        epoch: Number of cuts before the call started.
        probe: Whether the call is a circuit breaker's probe.
    """

    epoch: int
    probe: bool = False


class AdaptiveLimit:
    """A limit on calls in progress, in [1, `most`], that adapts to the endpoint.

    The limit L grows with successes, and only while all L slots are in use. Before the first cut,
    each success adds one (slow start); later, L successes add one. An overload (429, 503) halves
    L once: rejections of calls that started before the cut belong to the same episode. After any
    other failure, L does not grow for the next L successes.

    Attributes:
        most: Upper bound.
        under_way: Number of slots in use.
    """

    def __init__(self, most: int, first: int = FIRST_LIMIT) -> None:
        self.most = most
        self.under_way = 0
        self._limit = float(min(most, first))
        self._cuts = 0
        self._unmoved = 0

    @property
    def limit(self) -> int:
        """Calls that may be in progress now."""
        return int(self._limit)

    @property
    def has_room(self) -> bool:
        return self.under_way < self.limit

    def take(self, *, probe: bool = False) -> Slot:
        """Counts a call as in progress; the caller checks that there is room."""
        self.under_way += 1
        return Slot(self._cuts, probe)

    def give_back(self) -> None:
        """Counts a call as ended. Record its outcome first."""
        self.under_way -= 1

    def succeeded(self, slot: Slot) -> None:
        """Records that the call in `slot` succeeded."""
        # A success below the limit is no evidence that the endpoint bears a higher one. Calls that
        # started before a cut would undo it.
        if self._unmoved:
            self._unmoved -= 1
        elif slot.epoch == self._cuts and not self.has_room:
            step = 1.0 / self._limit if self._cuts else 1.0
            self._limit = min(float(self.most), self._limit + step)

    def overloaded(self, slot: Slot) -> bool:
        """Records that the call in `slot` was rejected. Returns whether a new episode starts."""
        if slot.epoch < self._cuts:
            return False
        self._cuts += 1
        self._limit = max(1.0, self._limit / 2)
        return True

    def record_error(self) -> None:
        """Records any other failure of a call."""
        self._unmoved = self.limit


class Admission:
    """The queue of calls that wait for a slot, lowest order first.

    Attributes:
        before_attempt: Check that runs before a call starts, and every second during a pause. All
            waiting calls raise its error; calls in progress continue.
        held_until: Earliest start of the next call, in the event loop's time.
    """

    def __init__(self, limit: AdaptiveLimit, breaker: CircuitBreaker) -> None:
        self.before_attempt: Callable[[], None] = lambda: None
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
            # The slot may have been granted before this task resumed. No other code releases it.
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
        until = loop_time() + seconds
        while (seconds_left := until - loop_time()) > 0:
            self.before_attempt()
            await asyncio.sleep(min(seconds_left, _RECHECK_EVERY_S))

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
                    self._breaker.probing = self._breaker.is_open
                    waiter.set_result(self._limit.take(probe=self._breaker.is_open))
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
        if self._breaker.policy.gives_way:
            return ServerLost(self._breaker.fault)
        return EndpointError(
            f"{self._breaker.fault}; every call has failed for "
            f"{self._breaker.policy.patience_s:.0f} s. "
            "Earlier replies are stored. Once the endpoint works, rerun the same command to resume",
            fatal=True,
        )

    def _may_start(self) -> bool:
        free = self._limit.has_room and not self._breaker.probing
        return free and self._opens_at() <= loop_time()

    def _opens_at(self) -> float:
        return max(self.held_until, self._breaker.probe_at)

    def _schedule_recheck(self) -> None:
        """Sets a timer if the passage of time alone will let a call start."""
        if self._opens_at() > loop_time():
            recheck_at = min(self._opens_at(), loop_time() + _RECHECK_EVERY_S)
            self._recheck_timer = asyncio.get_running_loop().call_at(recheck_at, self._admit)


def loop_time() -> float:
    """Returns the event loop's time in seconds."""
    return asyncio.get_running_loop().time()
