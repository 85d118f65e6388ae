"""Retries for the passing faults of an endpoint: how often, how long to wait, and for how long."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from storage.errors import EndpointError

T = TypeVar("T")

FaultKind = Literal["overload", "refused", "trouble"]
"""Turned away (429, 503); no connection; or a failure that may have cost the server work."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to wait.

    Attributes:
        attempts: failures that a call may meet, the last one included. Being turned away, and a
            connection that is refused, count as none: such a call waits, up to its deadline.
        base_s: Wait after failure i (from 0) is uniform in [0, base_s · 2^i] seconds.
        cap_s: longest such wait.
        longest_retry_after_s: Longest pause that a server may request.
        budget_share, budget_per_s: retries that an endpoint gets, all calls together: this share
            of its successes, and so many a second.
        first_probe_s, longest_probe_s: pauses of the circuit breaker (`engines.breaker`).
        patience_s: an endpoint that only fails for so long ends the run.
    """

    attempts: int = 4
    base_s: float = 0.5
    cap_s: float = 20.0
    longest_retry_after_s: float = 120.0
    budget_share: float = 0.1
    budget_per_s: float = 2.0
    first_probe_s: float = 1.0
    longest_probe_s: float = 60.0
    patience_s: float = 600.0

    def jitter_s(self, failures: int, rng: random.Random) -> float:
        """Returns a wait before the next attempt of a call that has failed so often (full
        jitter).
        """
        doubled = self.base_s * 2.0 ** min(failures - 1, 60)
        return rng.uniform(0.0, min(self.cap_s, doubled))


class RetryBudget:
    """A budget of retries, so that a failing endpoint does not get multiplied traffic.

    A bucket of `burst` tokens that begins full; a retry takes one. Without one it waits for its
    turn at `budget_per_s`.
    """

    def __init__(self, policy: RetryPolicy, burst: int) -> None:
        self._policy = policy
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at: float | None = None

    def succeeded(self) -> None:
        """Records a successful call."""
        self._tokens = min(self._burst, self._tokens + self._policy.budget_share)

    def take(self, now: float) -> float:
        """Takes a token; returns the seconds to wait before it may be used."""
        # Tokens may go negative: a negative balance is a queue of reservations, and -tokens / rate
        # is this caller's place in it in seconds. That spaces retries out without a lock or a
        # second queue.
        elapsed = now - self._filled_at if self._filled_at is not None else 0.0
        self._filled_at = now
        self._tokens = min(self._burst, self._tokens + elapsed * self._policy.budget_per_s) - 1.0
        return max(0.0, -self._tokens / self._policy.budget_per_s)


class PassingFault(Exception):
    """A fault that another attempt may not meet.

    Attributes:
        error: Error to raise after the last attempt.
        kind: Decides the cost of a retry, and whether the limit shrinks.
        retry_after_s: Pause requested by the server, or None.
    """

    def __init__(
        self,
        error: EndpointError,
        kind: FaultKind = "trouble",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.kind = kind
        self.retry_after_s = retry_after_s


async def once(attempt: Callable[[], Awaitable[T]]) -> T:
    """Awaits `attempt` without a second try.

    Raises:
        EndpointError: The fault.
    """
    try:
        return await attempt()
    except PassingFault as fault:
        raise fault.error from None
