"""Endpoint faults in words: what the `openai` package raises, told apart, with no key in it."""

import asyncio
import math
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

from engines.retry import PassingFault
from storage.errors import EndpointError

_LONGEST_DETAIL = 300
_PASSING_STATUS = frozenset({408, 409, 425, 429})


def shown_url(url: str) -> str:
    """`url` without credentials and query, fit for messages and digests."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def redacted(text: str, key: str | None) -> str:
    """`text` on one line, printable, without `key`, cut to a message's length."""
    if key:
        text = text.replace(key, "[key]")
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_DETAIL else line[:_LONGEST_DETAIL] + "…"


def in_words(fault: Exception, *, url: str, key: str | None, key_env: str) -> Exception:
    """The `EndpointError` (or `PassingFault` around one) that says what `fault` means.

    A refused connection, 401, 403 and an exhausted account are fatal. The server's own words are
    left out of 401 and 403: they tend to repeat the key.
    """
    import openai

    if isinstance(fault, openai.APIStatusError):
        return _status_in_words(fault, url, key, key_env)
    if _untrusted(fault):
        text = f"the TLS certificate of {url} is not trusted: set SSL_CERT_FILE, or use http"
        return EndpointError(text, fatal=True)
    if _refused(fault):
        text = f"nothing answers at {url}: start the server there, or correct base_url"
        return PassingFault(EndpointError(text, fatal=True))
    if isinstance(fault, openai.APITimeoutError | TimeoutError | asyncio.TimeoutError):
        return PassingFault(EndpointError(f"{url} did not answer in time (limits.timeout_s)"))
    if isinstance(fault, openai.APIConnectionError):
        cause = type(fault.__cause__).__name__ if fault.__cause__ else "unknown cause"
        return PassingFault(EndpointError(f"the connection to {url} broke ({cause})"))
    detail = redacted(f"{type(fault).__name__}: {fault}", key)
    return PassingFault(EndpointError(f"{url} answered something unreadable ({detail})"))


def _status_in_words(fault: Exception, url: str, key: str | None, key_env: str) -> Exception:
    status: int = getattr(fault, "status_code", 0)
    if status == 401:
        state = f"the key in {key_env} is not valid" if key else f"{key_env} is not set"
        return EndpointError(f"{url} answered 401: {state} for this endpoint", fatal=True)
    if status == 403:
        text = f"{url} answered 403: the key in {key_env} may not use this model or endpoint"
        return EndpointError(text, fatal=True)
    detail = redacted(str(fault), key)
    if status == 402 or getattr(fault, "code", None) == "insufficient_quota":
        return EndpointError(f"{url} answered {status}: no credit left ({detail})", fatal=True)
    error = EndpointError(f"{url} answered {status}: {detail}")
    if status in _PASSING_STATUS or status >= 500:
        return PassingFault(error, _retry_after_s(fault))
    return error


def _retry_after_s(fault: Exception) -> float | None:
    """Seconds of a Retry-After header; null if absent, not a number, or a date."""
    response = getattr(fault, "response", None)
    raw = response.headers.get("retry-after", "") if response is not None else ""
    try:
        seconds = float(raw)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _refused(fault: BaseException) -> bool:
    """Whether no connection came about: refused, unreachable, or an unknown host."""
    import aiohttp

    never_connected = (aiohttp.ClientConnectorError, ConnectionRefusedError)
    return any(isinstance(cause, never_connected) for cause in _causes(fault))


def _untrusted(fault: BaseException) -> bool:
    import ssl

    import aiohttp

    kinds = (aiohttp.ClientSSLError, ssl.SSLError)
    return any(isinstance(cause, kinds) for cause in _causes(fault))


def _causes(fault: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = fault
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
