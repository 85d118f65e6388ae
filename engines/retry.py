"""Bounded retries for the passing faults of an endpoint: full jitter, or what the server asks."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from storage.errors import EndpointError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to wait.

    Attributes:
        attempts: calls in all, the first one included.
        base_s: before retry i (from 0) wait a uniform draw from [0, base_s · 2^i] seconds.
        cap_s: longest such wait.
        longest_retry_after_s: a server that asks for a longer pause ends the call at once.
    """

    attempts: int = 4
    base_s: float = 0.5
    cap_s: float = 20.0
    longest_retry_after_s: float = 120.0


class PassingFault(Exception):
    """A fault that another attempt may not meet.

    Attributes:
        error: what to raise when there are no attempts left.
        retry_after_s: the pause that the server asked for, or null.
    """

    def __init__(self, error: EndpointError, retry_after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


async def retrying(
    attempt: Callable[[], Awaitable[T]], policy: RetryPolicy, rng: random.Random
) -> tuple[T, int]:
    """Await `attempt` until it succeeds; returns its result and the number of attempts.

    Raises:
        EndpointError: a fault that does not pass, or the last one allowed; it knows the number
            of attempts.
    """
    made = 0
    while True:
        made += 1
        try:
            return await attempt(), made
        except PassingFault as fault:
            pause = _pause_s(fault, made - 1, policy, rng)
            if made >= policy.attempts or pause is None:
                raise _worded(fault.error, made) from None
        except EndpointError as error:
            error.attempts = made
            raise
        await asyncio.sleep(pause)


async def once(attempt: Callable[[], Awaitable[T]]) -> T:
    """Await `attempt` without a second try.

    Raises:
        EndpointError: whatever the fault was.
    """
    try:
        return await attempt()
    except PassingFault as fault:
        raise fault.error from None


def _pause_s(
    fault: PassingFault, retry: int, policy: RetryPolicy, rng: random.Random
) -> float | None:
    """Seconds until the next attempt; null if the server asks for more than the policy grants."""
    asked = fault.retry_after_s
    if asked is None:
        return rng.uniform(0.0, min(policy.cap_s, policy.base_s * 2**retry))
    if asked > policy.longest_retry_after_s:
        return None
    # Calls that were turned away together should not all come back together.
    return asked * (1.0 + 0.1 * rng.random())


def _worded(error: EndpointError, attempts: int) -> EndpointError:
    if attempts == 1:
        return error
    return EndpointError(f"{error} ({attempts} attempts)", fatal=error.fatal, attempts=attempts)
