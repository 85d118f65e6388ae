"""The `openai` package's client, restricted to our address and our key, without retries."""

import os
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from branchwise.base import ConfigError, HttpClient, checked_address, names_secret

from ..settings import ModelSettings, RequestSettings
from .servers import decisive_settings, request_settings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_KEY_HEADERS = frozenset({"api-key", "x-api-key", "x-goog-api-key", "ocp-apim-subscription-key"})
"""Headers that carry the key instead of `Authorization`."""
_SHORTEST_SECRET = 8
_PLATFORM_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version")


def new_client(settings: ModelSettings, *, concurrency: int, timeout_s: float) -> "AsyncOpenAI":
    """Returns a client for `concurrency` calls at once; create it in the event loop that uses it.

    Raises:
        ConfigError: If the address, or the key, certificates or a proxy in the environment, cannot
            be used.
    """
    import httpx2
    import openai

    from .transport import Transport

    url, request = checked_url(settings), request_settings(settings)
    headers = _own_headers(request)
    # More connections than calls: waiting for a connection would use up the call's time limit.
    http = HttpClient(url, connections=2 * concurrency)
    transport = Transport(http, with_key=_sends_key(headers))
    return openai.AsyncOpenAI(
        # Not None: the package would then send OPENAI_API_KEY to any endpoint.
        api_key=key_in(settings.api_key_env) or "none",
        default_query=request.query,
        base_url=url,
        max_retries=0,
        timeout=timeout_s,
        http_client=httpx2.AsyncClient(transport=transport, timeout=timeout_s),
        default_headers=_without_platform() | headers,
    )


def _sends_key(headers: Iterable[str]) -> bool:
    """Returns whether `Authorization` is sent, with the key or as one of our headers.

    Azure and others take the key in a header of their own, and the variable of the other key may be
    another vendor's. Headers of gateways, such as `cf-aig-authorization`, come in addition.
    """
    names = {name.lower() for name in headers}
    return "authorization" in names or not names & _KEY_HEADERS


def _own_headers(request: RequestSettings) -> dict[str, Any]:
    """Returns the headers that `request.headers_env` names.

    Raises:
        ConfigError: If a variable is not set, or its value cannot be in a header.
    """
    headers: dict[str, Any] = {}
    for header, variable in request.headers_env.items():
        if (value := key_in(variable)) is None:
            raise ConfigError(
                f"{variable} is not set: request.headers_env takes the header {header} from it"
            )
        headers[header] = value
    return headers


def secrets_of(settings: ModelSettings) -> tuple[str, ...]:
    """Returns the key and the values of headers, which no message may repeat.

    A short value of a header without a secret's name, such as a team, is not a secret.
    """
    headers = request_settings(settings).headers_env
    secrets = [key_in(settings.api_key_env)]
    for header, variable in headers.items():
        value = key_in(variable)
        if value and (names_secret(header) or len(value) >= _SHORTEST_SECRET):
            secrets.append(value)
    return tuple(secret for secret in secrets if secret)


def key_variables(settings: ModelSettings) -> str:
    """Returns the names of the variables whose values are sent as keys, for a message."""
    headers = request_settings(settings).headers_env
    variables = [settings.api_key_env] if _sends_key(headers) else []
    return ", ".join((*variables, *(v for h, v in headers.items() if names_secret(h))))


def key_in(variable: str) -> str | None:
    """Returns the key; read for each use, so that no attribute of ours holds it.

    Raises:
        ConfigError: If an HTTP header cannot contain it.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"the key in {variable} contains a character that an HTTP header cannot have (a line "
            "break, another control character, or one outside ASCII). Set the variable to the key "
            "alone"
        )
    return key or None


def checked_url(settings: ModelSettings) -> str:
    """Returns the endpoint's address.

    Raises:
        ConfigError: If it is missing, is not an HTTP address, or contains credentials, a query or
            a key.
    """
    return checked_address(
        settings.base_url,
        f"base_url of model {settings.model!r}",
        "http://127.0.0.1:8000/v1",
        f"put a key into the environment variable that api_key_env names ({settings.api_key_env}), "
        "and other parameters such as api-version into request.query",
    )


def endpoint_digest(settings: ModelSettings) -> str:
    """Returns the hash (16 hex digits) of the endpoint's identity, model name and request settings.

    Raises:
        ConfigError: See `checked_url`.
    """
    for at_one in settings.at_each_server:
        checked_url(at_one)
    decisive = (settings.endpoint_identity, settings.model, *decisive_settings(at_one))
    return blake2b("\n".join(map(str, decisive)).encode(), digest_size=8).hexdigest()


def _without_platform() -> dict[str, Any]:
    """Returns settings that remove the package's headers about this machine."""
    import openai

    return {f"X-Stainless-{name}": openai.Omit() for name in _PLATFORM_HEADERS}
