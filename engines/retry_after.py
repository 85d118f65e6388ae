"""The `Retry-After` header: the pause that a server requests."""

import math
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_s(header: str, now: float) -> float | None:
    """Returns the requested seconds, at least 0; None if the header is unusable.

    Args:
        header: a number of seconds or an HTTP date; anything else counts as absent, as do a
            negative number and one that is not finite.
        now: seconds since the epoch by the clock that the date goes by. A date in the past asks
            for no wait.
    """
    try:
        seconds = float(header)
    except ValueError:
        date = epoch_s(header)
        return None if date is None else max(0.0, date - now)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def epoch_s(date: str) -> float | None:
    """Returns an HTTP date in seconds since the epoch, or None."""
    try:
        parsed = parsedate_to_datetime(date)
        # HTTP knows one time zone; Python takes a date that names none for local time.
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
