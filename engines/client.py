"""The `openai` package's client, made to keep to itself: our address, our key, no retries."""

import os
from typing import TYPE_CHECKING, Any

from engines.settings import ModelSettings
from storage.http import HttpClient, checked_address

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_PLATFORM_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version")


def new_client(settings: ModelSettings, *, concurrency: int, timeout_s: float) -> "AsyncOpenAI":
    """Returns a client for `concurrency` calls at once; made in the event loop that uses it.

    Raises:
        ConfigError: If the address cannot be used, or the environment names certificates or a
            proxy that cannot.
    """
    import httpx2
    import openai

    from engines.transport import Transport

    url = checked_url(settings)
    # Room above our own limit, the one bound: a pool's queue would eat the time limit.
    transport = Transport(HttpClient(url, connections=2 * concurrency))
    return openai.AsyncOpenAI(
        # Never null: the package would then send OPENAI_API_KEY to whoever answers.
        api_key=key_in(settings.api_key_env) or "none",
        base_url=url,
        max_retries=0,
        timeout=timeout_s,
        http_client=httpx2.AsyncClient(transport=transport, timeout=timeout_s),
        default_headers=_without_platform(),
    )


def key_in(variable: str) -> str | None:
    """Returns the key, read when needed and kept in no attribute of ours."""
    return os.environ.get(variable, "").strip() or None


def checked_url(settings: ModelSettings) -> str:
    """Returns the endpoint's address.

    Raises:
        ConfigError: If it is missing, not an HTTP address, or holds credentials or a query.
    """
    return checked_address(
        settings.base_url,
        f"base_url of model {settings.model!r}",
        "http://127.0.0.1:8000/v1",
        f"a key belongs into the environment variable {settings.api_key_env}",
    )


def _without_platform() -> dict[str, Any]:
    """Returns headers that hide facts about this machine from the server."""
    import openai

    return {f"X-Stainless-{name}": openai.Omit() for name in _PLATFORM_HEADERS}
