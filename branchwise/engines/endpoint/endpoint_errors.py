"""Converts errors of the `openai` package into our own, by cause and without the key."""

import errno
import json
import math
import re
import ssl
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from branchwise.base import EndpointError, Redirected, ReplyTooLarge, one_line

from .replies import ErrorInReply, UnreadableReply
from .retry import FaultKind, TransientError

_LONGEST_DETAIL = 300
_LONGEST_LOOKED_AT = 20_000
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_OVERLOAD_STATUS = frozenset({429, 503, 529})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_REDIRECT_REMEDY = "To send prompts and key there, set base_url to that address"
_REASONS = (
    *("error", "message", "msg", "error_description", "detail", "details", "errors", "reason"),
    *("metadata", "raw"),  # OpenRouter: what the provider said
)
"""Names of the fields that hold the reason of an error, in the order of the message."""
_DEEPEST = 6
_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_WRONG_KEY = re.compile(r"api.?key\b.{0,20}\b(not valid|invalid|expired)", re.IGNORECASE)
_NO_CREDIT = re.compile(
    r"\bcredit balance\b|\binsufficient (balance|credits?|funds)\b", re.IGNORECASE
)
_FIELD_NAMED = re.compile(
    r"\b(temperature|top_p|max_tokens|seed|response_format|structured_outputs|reasoning_effort"
    r"|chat_template_kwargs)\b"
)
"""Fields that distinguish a refused request from a refused key or path."""
_USER_IN_URL = re.compile(r"(?<=://)[^/\s]+@")


class ForbiddenError(EndpointError):
    """The endpoint answered 403: it rejects the key, or moderation rejects this prompt.

    It is fatal for the key. `for_prompt` is the error if the endpoint accepts other prompts.
    """

    def __init__(self, url: str, key_env: str, detail: str) -> None:
        refused = f"the key in {key_env} cannot access this model or endpoint"
        super().__init__(f"{url} answered 403: {refused} ({detail})", fatal=True)
        self.for_prompt = EndpointError(f"{url} answered 403 for this prompt: {detail}")


class RefusedRequest(EndpointError):
    """The endpoint refuses a request as it is (400, 422): other fields may help."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Returns `text` in one line, escaped and shortened, without `secrets` and users in URLs.

    Pass the whole text: a truncated key would not be found.
    """
    for secret in secrets:
        text = re.sub(_key_pattern(secret), "[key]", text)
    text = _USER_IN_URL.sub("[user]@", text)
    line = one_line(text)
    return line if len(line) <= _LONGEST_DETAIL else line[:_LONGEST_DETAIL] + "…"


def _key_pattern(key: str) -> str:
    """Returns a pattern for `key` as servers repeat it: verbatim or escaped (URL, JSON, Python)."""
    return "".join(rf"\\{{0,8}}(?:{re.escape(c)}|{_in_url(c)}|(?i:u{ord(c):04x}))" for c in key)


def _in_url(character: str) -> str:
    return "(?i:" + "".join(f"%{byte:02x}" for byte in character.encode()) + ")"


def to_endpoint_error(
    fault: Exception, *, url: str, secrets: Collection[str], key_env: str
) -> Exception:
    """Returns `fault` as an `EndpointError`, or as a `TransientError` around one.

    A refused connection, a redirect, 401 and an exhausted account are fatal; 403 is a
    `ForbiddenError`. The message for 401 omits a text about the key, because servers often repeat
    it there.
    """
    import openai

    if isinstance(fault, openai.APIStatusError):
        reason = reason_in(fault.response.content) or str(fault)
        pause_s = _requested_pause_s(fault)
        has_credit = "insufficient_quota" not in (fault.code, fault.type)
        status = fault.status_code if has_credit else 402
        return _status_in_words(status, reason, url, secrets, key_env, pause_s)
    if isinstance(fault, ErrorInReply):
        return _status_in_words(fault.status, fault.reason, url, secrets, key_env)
    if isinstance(fault, Redirected):
        text = f"{url} answered {fault.status}, a redirect to {redacted(fault.target, secrets)}"
        return EndpointError(f"{text}. Redirects are not followed. {_REDIRECT_REMEDY}", fatal=True)
    if isinstance(fault, ReplyTooLarge):  # a retry would cost as much and fail too
        return EndpointError(f"{url} {fault}")
    if (unconnected := _unconnected_in_words(fault, url)) is not None:
        return unconnected
    if (cause := _broken(fault)) is not None:
        text = f"the connection to {url} broke ({cause})"
    elif isinstance(fault, openai.APITimeoutError | TimeoutError):
        text = f"{url} did not answer in time (limits.timeout_s)"
    else:
        name = "" if isinstance(fault, UnreadableReply) else f"{type(fault).__name__}: "
        detail = redacted(f"{name}{fault}", secrets)
        text = f"{url} sent an unreadable reply ({detail})"
        if not url.endswith("/v1"):
            text += "; check base_url, which usually ends in /v1"
    return TransientError(EndpointError(text))


def reason_in(body: bytes) -> str:
    """Returns the reason in the body of an error, whatever its shape; "" if there is none."""
    try:
        return _reason(json.loads(body))
    except (ValueError, RecursionError):
        text = _beginning(body).decode("utf-8", "replace").strip()
        return " ".join(_MARKUP.sub(" ", text).split()) if text.startswith("<") else text


def _reason_in_text(text: str, depth: int) -> str:
    """Returns the reason in a text, which may be JSON (of a gateway's provider)."""
    if depth <= _DEEPEST and text.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            return _reason(json.loads(text), depth + 1)
    return text


def _beginning(body: bytes) -> bytes:
    """Returns the beginning of a body, up to a blank, so that no key in it is truncated."""
    if len(body) <= _LONGEST_LOOKED_AT:
        return body
    words = body[:_LONGEST_LOOKED_AT].rsplit(None, 1)
    return words[0] if len(words) > 1 else b""


def _reason(value: Any, depth: int = 0) -> str:
    """Returns the reason in a part of an error; "" if there is none."""
    if isinstance(value, str):
        return _reason_in_text(value, depth)
    if depth > _DEEPEST:
        return ""
    if isinstance(value, list):
        reasons = (_reason(part, depth + 1) for part in value)
        return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
    if not isinstance(value, dict):
        return ""
    lower = {str(name).lower(): part for name, part in value.items()}
    parts = [_reason(lower.get(name), depth + 1) for name in _REASONS]
    if not any(parts):
        parts = [_reason(part, depth + 1) for part in value.values()]
    reason = ": ".join(dict.fromkeys(filter(None, parts)))
    location = lower.get("loc") or lower.get("param")
    place = ".".join(map(str, location)) if isinstance(location, list) else location
    return f"{place}: {reason}" if reason and isinstance(place, str) and place else reason


def _unconnected_in_words(fault: Exception, url: str) -> Exception | None:
    """Returns the error if no connection was established, else None."""
    import aiohttp

    if any(getattr(cause, "errno", None) in _NO_DESCRIPTORS for cause in _causes(fault)):
        text = "this process cannot open more files: raise `ulimit -n`"
        return EndpointError(f"{text}, or lower limits.max_concurrency", fatal=True)
    if _caused_by(fault, ssl.SSLCertVerificationError):  # other TLS faults are the network's
        text = f"the TLS certificate of {url} is not trusted: set SSL_CERT_FILE, or use http"
        return EndpointError(text, fatal=True)
    # No connection was established: refused, unreachable or unknown host.
    if _caused_by(fault, aiohttp.ClientConnectorError, ConnectionRefusedError):
        text = f"nothing answers at {url}: start the server there, or correct base_url"
        if _caused_by(fault, aiohttp.ClientProxyConnectionError):
            text = (
                f"the proxy for {url} does not answer: correct HTTP_PROXY or HTTPS_PROXY, or add "
                "the host to NO_PROXY"
            )
        elif _caused_by(fault, aiohttp.ClientConnectorSSLError):
            text = f"the TLS handshake with {url} failed: correct base_url, or use http"
        return TransientError(EndpointError(text, fatal=True), "refused")
    return None


def _status_in_words(
    status: int,
    reason: str,
    url: str,
    secrets: Collection[str],
    key_env: str,
    pause_s: float | None = None,
) -> Exception:
    """Returns the error for a status, of the reply or of an error inside it."""
    detail = redacted(reason, secrets)
    if status == 400 and _WRONG_KEY.search(reason):
        status = 401
    if status == 400 and _NO_CREDIT.search(reason):
        status = 402
    is_refusal = status in (400, 415, 422)
    is_refusal |= status in (403, 404) and _FIELD_NAMED.search(reason) is not None
    error = EndpointError(f"{url} answered {status}: {detail}", fatal=status == 404)
    if status == 401:
        state = f"the key in {key_env} is not valid" if secrets else f"{key_env} is not set"
        quoted = "" if "key" in detail.lower() else f" ({detail})"
        error = EndpointError(f"{url} answered 401: {state} for this endpoint{quoted}", fatal=True)
    elif status == 402:
        error = EndpointError(f"{url} refuses: no credit left ({detail})", fatal=True)
    elif is_refusal:
        error = RefusedRequest(f"{url} answered {status}: {detail}")
    elif status == 403:
        error = ForbiddenError(url, key_env, detail)
    if status not in _TRANSIENT_STATUS and status < 500:
        return error
    kind: FaultKind = "overload" if status in _OVERLOAD_STATUS else "trouble"
    return TransientError(error, kind, pause_s)


def _requested_pause_s(fault: Exception) -> float | None:
    """Returns the seconds in the Retry-After header; None without a usable header."""
    response = getattr(fault, "response", None)
    if response is None:
        return None
    # Retry-After dates use the server's clock, which the header `date` reports.
    now = epoch_s(response.headers.get("date", ""))
    header = response.headers.get("retry-after", "")
    return retry_after_s(header, time.time() if now is None else now)


def _broken(fault: BaseException) -> str | None:
    """Returns the name of the fault that ended an established connection, else None.

    The package reports a reset as a timeout, so this looks through the chain of causes.
    """
    import aiohttp
    import openai

    broke = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)
    for cause in _causes(fault):
        if isinstance(cause, broke) and not isinstance(cause, TimeoutError):
            return type(cause).__name__
    if isinstance(fault, openai.APIConnectionError) and not isinstance(
        fault, openai.APITimeoutError
    ):
        return type(fault.__cause__).__name__ if fault.__cause__ else "unknown cause"
    return None


def _caused_by(fault: BaseException, *kinds: type[BaseException]) -> bool:
    return any(isinstance(cause, kinds) for cause in _causes(fault))


def _causes(fault: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = fault
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


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
