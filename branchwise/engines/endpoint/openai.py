"""Sampling from OpenAI-compatible endpoints: vLLM, a vendor or a fleet.

Timeouts are explicit, retries are visible, and the key comes only from the environment.
Constraints take the form of the server (`structured_output`). Requests that need token ids go to
`/completions` of a vLLM server.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from branchwise.base import EndpointError, Redirected, ReplyTooLarge, shown_url
from branchwise.types import Message
from branchwise.weights import template_values

from ..sampling import (
    CallIdentity,
    Capabilities,
    Completion,
    SampleRequest,
    Sampling,
    call_key,
    derived_seed,
)
from ..settings import ModelSettings, RequestSettings
from .chat import REGEX_FORMS, TEMPLATE_FORMS, StructuredForm, chat_body, ids_body, prompt_parts
from .client import checked_url, endpoint_digest, key_variables, new_client, secrets_of
from .endpoint_errors import ForbiddenError, RefusedRequest, to_endpoint_error
from .remedies import find_settings
from .replies import (
    ErrorInReply,
    ReasoningRule,
    UnreadableReply,
    is_ids,
    longest_text,
    parse_body,
    read_ids_reply,
    read_reply,
)
from .retry import RetryPolicy, once
from .servers import ServerFacts, combined, constraint_form, read_models, request_shape, server_kind
from .traffic import RequestScheduler, traffic_to
from .usage import TokenCounter

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_PREFLIGHT_TIMEOUT_S = 30.0


def check_request(settings: ModelSettings) -> SampleRequest:
    """Returns a harmless request with the turns and the sampling that a run sends."""
    turns = (Message("system", "Answer in one word."), Message("user", "What is 1 + 1?"))
    sampling = Sampling(settings.temperature, settings.top_p, settings.max_new_tokens)
    return SampleRequest(turns, sampling, CallIdentity("check", "", ""))


class OpenAIEngine:
    """One model at one endpoint; use inside `async with`.

    With `structured_output: auto`, entering the engine queries the server for its type. `check` is
    the preflight. Engines at one address share its limit, pauses and retries
    (`engines.endpoint.traffic`) if they have the same bounds and run in the same event loop.

    Raises:
        ConfigError: If `base_url` is missing, is not an HTTP address, or contains credentials, a
            query or a key.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        max_concurrency: int = 64,
        timeout_s: float = 120.0,
        deadline_s: float = 900.0,
        retry: RetryPolicy | None = None,
        on_event: Callable[[str], None] | None = None,
        before_attempt: Callable[[], None] | None = None,
        known_as: str | None = None,
        digest: str | None = None,
    ) -> None:
        """Checks the address and keeps the limits (see `engines.endpoint.traffic`).

        Args:
            settings: Model and endpoint.
            max_concurrency: Most calls in progress.
            timeout_s: Seconds per attempt.
            deadline_s: Seconds from a call's first attempt, including retries and the waits between
                them; at least `timeout_s`.
            retry: Retry policy; defaults to `RetryPolicy()`.
            on_event: Callback for messages about pauses and recovery of the endpoint.
            before_attempt: Check that runs before every attempt, and every second while none may
                start. It raises `BudgetExceeded` if no more calls are allowed.
            known_as: Name of the model for keys and rows; defaults to the requested name.
            digest: Digest of the model for keys and rows; defaults to `endpoint_digest`.
        """
        self._base_url = checked_url(settings)
        self._url = shown_url(self._base_url)
        self._root = self._base_url.rstrip("/").removesuffix("/v1")
        self._settings = settings
        self._shape = request_shape(settings)
        self._timeout_s = timeout_s
        self._max_concurrency = max_concurrency
        self._deadline_s = max(deadline_s, timeout_s)
        retry = retry or RetryPolicy()
        # One prompt that never gets a reply fails alone: all its attempts may last that long.
        patience_s = max(retry.patience_s, (retry.attempts + 1) * timeout_s)
        self._retry = replace(retry, patience_s=patience_s)
        self._on_event = on_event
        self._before_attempt = before_attempt
        self._form: StructuredForm = constraint_form(settings) or "none"
        self._passes_template_values = False
        self._counter = TokenCounter(settings.weights)
        self._accepted = False  # whether the endpoint accepted the last call
        self._client: AsyncOpenAI | None = None
        self._traffic: RequestScheduler | None = None
        self.model = known_as or settings.model
        self.digest = digest or endpoint_digest(settings)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            structured_output=self._form in REGEX_FORMS,
            json_schema=self._form != "none",
            token_ids=self._form == "vllm",
        )

    async def __aenter__(self) -> Self:
        self._client = new_client(
            self._settings, concurrency=self._max_concurrency, timeout_s=self._timeout_s
        )
        self._traffic = traffic_to(self._url, self._max_concurrency, self._deadline_s, self._retry)
        self._traffic.on_event = self._on_event or self._traffic.on_event
        admission = self._traffic.admission
        admission.before_attempt = self._before_attempt or admission.before_attempt
        try:
            detected: StructuredForm = "none"
            if server_kind(self._settings) == "auto" and self._form not in TEMPLATE_FORMS:
                facts = await self._server()
                detected = "none" if facts is None else facts.form
            self._form = constraint_form(self._settings) or detected
            self._passes_template_values = bool({self._form, detected} & TEMPLATE_FORMS)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        client, self._client, self._traffic = self._client, None, None
        if client is not None:
            await client.close()

    async def check(self) -> None:
        """Preflight: checks that the endpoint answers, accepts the key and has the model.

        If `/models` does not list the model (gateways have aliases), it draws a reply instead.

        Raises:
            EndpointError: If the endpoint fails the check.
        """
        facts = await self._server()
        if facts is None or self._settings.model not in facts.models:
            await once(partial(self._attempt, check_request(self._settings)))

    async def advise(self, request: SampleRequest) -> dict[str, Any] | None:
        """Returns the settings that make the endpoint accept a request that it refused.

        See `engines.endpoint.remedies.find_settings`.
        """

        if self._traffic is None:
            raise self._is_closed()
        traffic = self._traffic

        async def attempt(body: dict[str, Any]) -> Completion:
            reply = await self._with_timeout(self._posted("/chat/completions", body))
            return self._read(reply, request, 0.0)

        async def accepts(body: dict[str, Any]) -> bool:
            try:
                await traffic.send(partial(attempt, body))
            except RefusedRequest:
                return False
            return True

        settings = await find_settings(accepts, self._body(request))
        if settings and "request" in settings:
            together = combined(self._settings.request, RequestSettings(**settings["request"]))
            settings["request"] = together.model_dump(exclude_defaults=True)
        return settings

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion (see `engines.sampling.Engine.sample`)."""
        self._require(request)
        if self._traffic is None:
            raise self._is_closed()
        completion, attempts = await self._traffic.send(partial(self._attempt_or_reject, request))
        return replace(completion, attempts=attempts) if attempts > 1 else completion

    async def _attempt_or_reject(self, request: SampleRequest) -> Completion:
        """Draws once; a 403 is fatal only if the endpoint rejects a harmless prompt too.

        That is checked at the first call and at the second of two 403 in a row: a key may be
        revoked during a run.
        """
        try:
            completion = await self._attempt(request)
        except ForbiddenError as error:
            if self._accepted:
                self._accepted = False
            else:
                await self._attempt(check_request(self._settings))
                self._accepted = True
            raise error.for_prompt from None
        self._accepted = True
        return completion

    async def _attempt(self, request: SampleRequest) -> Completion:
        if request.tokens or request.prefix:
            return await self._continue(request)
        body = self._body(request)
        begin = time.perf_counter()
        reply = await self._with_timeout(self._posted("/chat/completions", body))
        latency_s = time.perf_counter() - begin
        completion = self._read(reply, request, latency_s)
        if completion.usage.basis != "reported" and not self._counter.settled:
            await self._counter.load_tokenizer(self._log_basis)
            completion = self._read(reply, request, latency_s)
        return completion

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        model, thinking = self._settings.model, self._settings.thinking
        seed = derived_seed(call_key(request, self.digest))
        body = chat_body(request, model=model, seed=seed, form=self._form)
        if self._passes_template_values:
            body["chat_template_kwargs"] = template_values(thinking=thinking)
        return self._shape.apply(body)

    async def _continue(self, request: SampleRequest) -> Completion:
        """Draws by token ids; the server encodes the texts first."""
        seed = derived_seed(call_key(request, self.digest))
        prompt: list[int] = []
        for part in prompt_parts(request, self._settings.model):
            if isinstance(part, dict):
                body = self._shape.apply_to_prompt(part) if "messages" in part else part
                prompt += await self._with_timeout(self._encoded(body))
            else:
                prompt += part
        model, url = self._settings.model, self._url
        body = ids_body(request, prompt, model=model, seed=seed, form=self._form)
        body = self._shape.apply(body)
        begin = time.perf_counter()
        reply = await self._with_timeout(self._posted("/completions", body))
        latency_s = time.perf_counter() - begin
        try:
            completion = read_ids_reply(reply, request, tuple(prompt), url=url, model=model)
        except (UnreadableReply, ErrorInReply) as fault:
            raise self._in_words(fault) from None
        return replace(completion, latency_s=latency_s)

    async def _encoded(self, body: dict[str, Any]) -> list[int]:
        reply = await self._posted(f"{self._root}/tokenize", body)
        ids = reply.get("tokens") if isinstance(reply, dict) else None
        if not is_ids(ids):
            raise UnreadableReply("no tokens in a reply of /tokenize")
        return ids

    def _read(self, reply: Any, request: SampleRequest, latency_s: float) -> Completion:
        try:
            return read_reply(
                reply,
                request,
                model=self._settings.model,
                latency_s=latency_s,
                counter=self._counter,
                rule=self.reasoning_rule,
                longest=longest_text(request.sampling.max_new_tokens),
            )
        except ValueError as fault:
            raise self._in_words(fault) from None

    @property
    def reasoning_rule(self) -> ReasoningRule:
        """How to separate replies from reasoning; `auto` depends on whether thinking is off."""
        rule = self._settings.reasoning
        if rule != "auto":
            return rule
        is_on = self._shape.thinking
        if is_on is None and self._passes_template_values:
            is_on = self._settings.thinking
        return "reply" if is_on is False else "drop"

    def _log_basis(self, basis: str) -> None:
        if self._on_event is not None:
            self._on_event(
                f"{self._url} reports no usable token counts for {self.model}: {basis}; "
                "limits and costs use these counts"
            )

    async def _posted(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the JSON of the reply.

        This bypasses `chat.completions.create`. That method would take twice the processor time of
        everything else, to check our own request and to build objects that we do not need.
        """
        import httpx2

        response = await self._connected().post(path, body=body, cast_to=httpx2.Response)
        return parse_body(response.content, response.headers.get("content-type", ""))

    async def _with_timeout(self, call: Any, timeout_s: float | None = None) -> Any:
        """Awaits one call to the endpoint under the time limit; converts faults into our errors."""
        import aiohttp
        import openai

        try:
            # The client's own timeout is per read: a slow trickle of bytes would never exceed it.
            async with asyncio.timeout(timeout_s or self._timeout_s):
                reply = await call
        except (
            openai.OpenAIError,
            aiohttp.ClientError,
            OSError,
            ValueError,
            RecursionError,
            Redirected,
            ReplyTooLarge,
        ) as fault:
            if isinstance(fault, openai.APIStatusError):
                self._reached()
            error = self._in_words(fault)
            if isinstance(fault, openai.NotFoundError) and not isinstance(error, RefusedRequest):
                raise await self._not_found(str(error)) from None
            raise error from None
        self._reached()
        return reply

    def _reached(self) -> None:
        if self._traffic is not None:
            self._traffic.reached = True

    def _in_words(self, fault: Exception) -> Exception:
        secrets, env = secrets_of(self._settings), key_variables(self._settings)
        return to_endpoint_error(fault, url=self._url, secrets=secrets, key_env=env)

    async def _not_found(self, reason: str) -> EndpointError:
        """Returns the error for a 404 of the model; `reason` is what the server said."""
        model, facts = self._settings.model, await self._server()
        if facts is None:
            text = f"{reason}; base_url is wrong (it usually ends in /v1), or the model is missing"
        elif model in facts.models:
            text = f"{reason}, but it lists the model {model!r}"
        else:
            text = (
                f"{self._url} does not serve the model {model!r}. "
                f"Available models: {facts.models_shown}"
            )
        return EndpointError(text, fatal=True)

    async def _server(self) -> ServerFacts | None:
        """Returns the server's facts about itself; None if it does not list its models."""
        timeout_s = min(self._timeout_s, _PREFLIGHT_TIMEOUT_S)
        return read_models(await once(lambda: self._with_timeout(self._models(), timeout_s)))

    async def _models(self) -> Any:
        """Returns the JSON at `/models`; None if the server lacks it or refuses it."""
        import httpx2
        import openai

        try:
            page = await self._connected().get("/models", cast_to=httpx2.Response)
            return parse_body(page.content, page.headers.get("content-type", ""))
        except openai.APIStatusError as fault:
            if fault.status_code == 401:
                raise
            if fault.status_code == 429 or (fault.status_code >= 500 and fault.status_code != 501):
                raise EndpointError(
                    f"{self._url}/models answered {fault.status_code}. If this server cannot list "
                    "its models, set `server` to its kind (docs/endpoints.md)"
                ) from None
            return None
        except UnreadableReply:
            return None

    def _require(self, request: SampleRequest) -> None:
        """Rejects requests that this endpoint cannot serve."""
        can = self.capabilities
        if (request.tokens or request.prefix) and not can.token_ids:
            text = f"{self._url} may not accept and return token ids: use vLLM 0.11 or newer"
            raise EndpointError(
                f"{text} (engine: vllm, or engine: openai with structured_output: vllm)", fatal=True
            )
        supported = {"regex": can.structured_output, "json_schema": can.json_schema}
        if request.structure is not None and not supported[kind := request.structure.kind]:
            raise EndpointError(
                f"{self._url} does not support {kind} constraints. Set structured_output"
            )

    def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            raise self._is_closed()
        return self._client

    def _is_closed(self) -> EndpointError:
        return EndpointError(f"the engine for {self._url} is closed: use it in `async with`")
