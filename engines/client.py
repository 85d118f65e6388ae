"""The `openai` package's client, made to keep to itself: our address, our key, no retries."""

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from engines.faults import shown_url
from engines.settings import ModelSettings
from storage.errors import ConfigError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PLATFORM_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version")


def new_client(settings: ModelSettings, *, concurrency: int, timeout_s: float) -> "AsyncOpenAI":
    """A client for `concurrency` calls at once, on its aiohttp transport."""
    import openai

    url = checked_url(settings)
    http = openai.DefaultAioHttpClient(
        timeout=openai.Timeout(timeout_s),
        limits=_connection_limits(concurrency),
        # A proxy in the environment must not see, or break, calls to this machine.
        trust_env=urlsplit(url).hostname not in _LOOPBACK,
    )
    return openai.AsyncOpenAI(
        # Never null: the package would then send OPENAI_API_KEY to whoever answers.
        api_key=key_in(settings.api_key_env) or "none",
        base_url=url,
        max_retries=0,
        timeout=timeout_s,
        http_client=http,
        default_headers=_without_platform(),
    )


def key_in(variable: str) -> str | None:
    """The key, read when needed and kept in no attribute of ours."""
    return os.environ.get(variable, "").strip() or None


def checked_url(settings: ModelSettings) -> str:
    """The endpoint's address.

    Raises:
        ConfigError: it is missing, no HTTP address, or holds credentials.
    """
    url = settings.base_url or ""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (refused only when it is read)
    except ValueError:  # its words may hold a part of a password
        raise ConfigError(
            f"base_url of model {settings.model!r} is malformed (an open bracket, or a port that "
            "is no number up to 65535): it should look like http://127.0.0.1:8000/v1"
        ) from None
    if parts.username or parts.password:
        raise ConfigError(
            f"base_url of model {settings.model!r} holds credentials: "
            f"put the key into the environment variable {settings.api_key_env}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"base_url of model {settings.model!r} is {shown_url(url) or 'missing'}: "
            "give the endpoint's address, such as http://127.0.0.1:8000/v1"
        )
    return url


def _without_platform() -> dict[str, Any]:
    """Headers that keep the package from telling the server about this machine."""
    import openai

    return {f"X-Stainless-{name}": openai.Omit() for name in _PLATFORM_HEADERS}


def _connection_limits(concurrency: int) -> Any:
    """Room above our own limit, the one bound: a pool's queue would eat the time limit."""
    import httpx2

    return httpx2.Limits(max_connections=2 * concurrency, max_keepalive_connections=concurrency)
