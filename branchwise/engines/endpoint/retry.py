"""Retries for temporary faults of an endpoint: how many, and how long to wait."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from branchwise.base import EndpointError

T = TypeVar("T")

FaultKind = Literal["overload", "refused", "trouble"]
"""Rejected under load (429, 503); no connection; or a failure that may have cost the server work.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to retry, and how long to wait.

    Attributes:
        attempts: Limit on failures of a call, including the last one. Rejections under load and
            refused connections do not count: such a call waits until its deadline.
        base_s: Wait after failure i (from 0) is uniform in [0, base_s · 2^i] seconds.
        cap_s: Upper bound of that wait in seconds.
        longest_retry_after_s: Longest pause that a server may request.
        budget_share: Retries per success of an endpoint, for all calls together.
        budget_per_s: Additional retries per second.
        first_probe_s, longest_probe_s: Pauses of the circuit breaker.
        patience_s: Seconds of nothing but failures after which the run ends.
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
        """Returns the wait before the next attempt after this many failures (full jitter)."""
        doubled = self.base_s * 2.0 ** min(failures - 1, 60)  # a float overflows at 2^1024
        return rng.uniform(0.0, min(self.cap_s, doubled))


class RetryBudget:
    """Limits retries, so that a failing endpoint does not get multiplied traffic.

    A bucket of `burst` tokens, initially full. Each retry takes one token. If the bucket is empty,
    the retry waits for its turn at `budget_per_s`.
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
        """Takes a token; returns the seconds to wait before using it."""
        # Tokens may become negative: a negative balance is a queue of reservations, and
        # -tokens / rate is this caller's wait in seconds. That spaces retries evenly without a
        # lock or a second queue.
        elapsed = now - self._filled_at if self._filled_at is not None else 0.0
        self._filled_at = now
        self._tokens = min(self._burst, self._tokens + elapsed * self._policy.budget_per_s) - 1.0
        return max(0.0, -self._tokens / self._policy.budget_per_s)


class TransientError(Exception):
    """A temporary fault: another attempt may succeed.

    Attributes:
        error: Error to raise after the last attempt.
        kind: Type of the fault; decides the cost of a retry, and whether the limit shrinks.
        retry_after_s: Pause requested by the server in seconds; None without one.
    """

    def __init__(
        self, error: EndpointError, kind: FaultKind = "trouble", retry_after_s: float | None = None
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.kind = kind
        self.retry_after_s = retry_after_s


async def once(attempt: Callable[[], Awaitable[T]]) -> T:
    """Awaits `attempt` without a retry.

    Raises:
        EndpointError: If the attempt fails.
    """
    try:
        return await attempt()
    except TransientError as fault:
        raise fault.error from None
