"""The `Retry-After` header: the pause that a server requests."""

import math
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_s(header: str, now: float) -> float | None:
    """Returns the requested seconds, at least 0; None if the header is unusable.

    Args:
        header: Number of seconds or an HTTP date. Anything else counts as absent, including
            negative and non-finite numbers.
        now: Seconds since the epoch, by the server's clock. A date in the past means no wait.
    """
    try:
        seconds = float(header)
    except ValueError:
        date = epoch_s(header)
        return None if date is None else max(0.0, date - now)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def epoch_s(date: str) -> float | None:
    """Returns an HTTP date in seconds since the epoch; None if it cannot be read."""
    try:
        parsed = parsedate_to_datetime(date)
        # HTTP dates are in UTC, but Python reads a date without a time zone as local time.
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
