"""Any OpenAI-compatible endpoint (vLLM, a vendor, a fleet) behind the sampling interface.

Explicit timeouts, no hidden retries, the key only from the environment. A vLLM server is asked
for its constraint on decoding (`structured_outputs`) and for the continuation of a prefix; other
servers get what `structured_output` in the settings says.
"""

import asyncio
import os
import random
import time
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from engines.chat import StructuredForm, chat_arguments, read_reply
from engines.faults import in_words, shown_url
from engines.retry import RetryPolicy, once, retrying
from engines.sampling import (
    CallIdentity,
    Capabilities,
    Completion,
    Message,
    SampleRequest,
    Sampling,
    call_key,
    derived_seed,
)
from engines.server import ServerFacts, read_models, read_version
from engines.settings import ModelSettings
from storage.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PREFLIGHT_TIMEOUT_S = 30.0
_PLATFORM_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version")


class OpenAIEngine:
    """One model at one endpoint; use inside `async with`.

    With `structured_output: auto` entering asks the server what it is. `check` is the preflight.
    At most `max_concurrency` calls are under way, each given `timeout_s` an attempt; a call that
    waits before a retry keeps its slot, which is what slows the others down when the server asks
    for it.

    Raises:
        ConfigError: `base_url` is missing, is no HTTP address, or holds credentials.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        max_concurrency: int = 64,
        timeout_s: float = 120.0,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._base_url = _checked_url(settings)
        self._url = shown_url(self._base_url)
        self._settings = settings
        self._timeout_s = timeout_s
        self._concurrency = max_concurrency
        self._slots = asyncio.Semaphore(max_concurrency)
        self._retry = retry or RetryPolicy()
        self._jitter = random.Random()
        asked = settings.structured_output
        self._form: StructuredForm = "none" if asked == "auto" else asked
        self._client: AsyncOpenAI | None = None
        self._digest = blake2b(f"{self._url}\n{settings.model}".encode(), digest_size=8).hexdigest()

    @property
    def model(self) -> str:
        return self._settings.model

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def capabilities(self) -> Capabilities:
        vllm = self._form in ("vllm", "vllm-guided")
        return Capabilities(
            structured_output=vllm,
            json_schema=self._form != "none",
            prefix_continuation=vllm,
            seed=True,
        )

    async def __aenter__(self) -> Self:
        self._client = self._new_client()
        try:
            if self._settings.structured_output == "auto":
                self._form = await self._form_of_server()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def check(self) -> None:
        """Preflight: is the endpoint there, does it take the key, has it the model?

        A model that `/models` does not list (gateways have aliases) is tried with one token.

        Raises:
            EndpointError: what is wrong, before any work starts.
        """
        facts = await self._server()
        if facts is None or self.model not in facts.models:
            request = SampleRequest(
                (Message("user", "Hi"),),
                Sampling(temperature=0.0, top_p=1.0, max_new_tokens=1),
                CallIdentity("check", "", ""),
            )
            await once(partial(self._attempt, request))

    async def sample(self, request: SampleRequest, n: int = 1) -> list[Completion]:
        """Draw `n` completions, each with a seed of its own (see `engines.sampling.Engine`)."""
        self._require(request)
        if n == 1:
            return [await self._draw(request)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._draw(draw)) for draw in request.draws(n)]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _draw(self, request: SampleRequest) -> Completion:
        async with self._slots:
            completion, attempts = await retrying(
                partial(self._attempt, request), self._retry, self._jitter
            )
        return replace(completion, attempts=attempts)

    async def _attempt(self, request: SampleRequest) -> Completion:
        seed = derived_seed(call_key(request, self.model, self.digest))
        arguments = chat_arguments(request, model=self.model, seed=seed, form=self._form)
        begin = time.perf_counter()
        reply = await self._asked(self._connected().chat.completions.create(**arguments))
        try:
            return read_reply(reply, model=self.model, latency_s=time.perf_counter() - begin)
        except ValueError as fault:
            raise self._in_words(fault) from None

    async def _asked(self, call: Any, timeout_s: float | None = None) -> Any:
        """Await one call to the endpoint under the time limit; faults come out in words."""
        import aiohttp
        import openai

        try:
            # The client's own timeout is per read: a server that drips would never meet it.
            async with asyncio.timeout(timeout_s or self._timeout_s):
                return await call
        except openai.NotFoundError:
            raise await self._not_found() from None
        except (openai.OpenAIError, aiohttp.ClientError, OSError, ValueError) as fault:
            raise self._in_words(fault) from None

    def _in_words(self, fault: Exception) -> Exception:
        env = self._settings.api_key_env
        return in_words(fault, url=self._url, key=_key(env), key_env=env)

    async def _not_found(self) -> EndpointError:
        facts = await self._server()
        if facts is None:
            text = f"{self._url} answered 404: base_url is wrong (it usually ends in /v1)"
        elif self.model in facts.models:
            text = f"{self._url} lists the model {self.model!r} but answered 404 for it"
        else:
            text = f"{self._url} has no model {self.model!r}; it has: {facts.models_shown}"
        return EndpointError(text, fatal=True)

    async def _form_of_server(self) -> StructuredForm:
        facts = await self._server()
        return facts.form if facts is not None else "none"

    async def _server(self) -> ServerFacts | None:
        """What the server says about itself; null if it has no list of models."""
        facts = read_models(await once(partial(self._get, "/models")))
        if facts is None or not facts.is_vllm:
            return facts
        root = self._base_url.rstrip("/").removesuffix("/v1")
        version = read_version(await once(partial(self._get, f"{root}/version")))
        return replace(facts, vllm=version)

    async def _get(self, path: str) -> Any:
        """JSON at `path`; null where there is no such page."""
        import openai

        async def fetched() -> Any:
            try:
                return await self._connected().get(path, cast_to=object)
            except (openai.NotFoundError, openai.UnprocessableEntityError):
                return None

        return await self._asked(fetched(), min(self._timeout_s, _PREFLIGHT_TIMEOUT_S))

    def _require(self, request: SampleRequest) -> None:
        """Refuse what this endpoint cannot do, rather than leave it out in silence."""
        can = self.capabilities
        if request.prefix is not None and not can.prefix_continuation:
            raise EndpointError(f"{self._url} cannot continue a prefix: that needs a vLLM server")
        structure = request.structure
        if structure is None:
            return
        if not (can.structured_output if structure.kind == "regex" else can.json_schema):
            text = f"{self._url} takes no {structure.kind} constraint: set structured_output"
            raise EndpointError(text)

    def _new_client(self) -> "AsyncOpenAI":
        import openai

        http = openai.DefaultAioHttpClient(
            timeout=openai.Timeout(self._timeout_s),
            limits=_connection_limits(self._concurrency),
            # A proxy in the environment must not see, or break, calls to this machine.
            trust_env=urlsplit(self._base_url).hostname not in _LOOPBACK,
        )
        return openai.AsyncOpenAI(
            # Never null: the package would then send OPENAI_API_KEY to whoever answers.
            api_key=_key(self._settings.api_key_env) or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=self._timeout_s,
            http_client=http,
            default_headers=_without_platform(),
        )

    def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            raise EndpointError(f"the engine for {self._url} is closed: use it in `async with`")
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _without_platform() -> dict[str, Any]:
    """Headers that keep the package from telling the server about this machine."""
    import openai

    return {f"X-Stainless-{name}": openai.Omit() for name in _PLATFORM_HEADERS}


def _connection_limits(concurrency: int) -> Any:
    """Room above the semaphore, which is the one bound: a pool's queue would eat the time limit."""
    import httpx2

    return httpx2.Limits(max_connections=2 * concurrency, max_keepalive_connections=concurrency)


def _key(variable: str) -> str | None:
    """The key, read when needed and kept in no attribute of ours."""
    return os.environ.get(variable, "").strip() or None


def _checked_url(settings: ModelSettings) -> str:
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
