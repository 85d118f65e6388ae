"""A real OpenAI-compatible server on loopback whose replies come from the test.

    async with FakeEndpoint(lambda request: "Paris") as endpoint:
        OpenAIEngine(settings_for(endpoint), limits)

A reply is a text (the assistant's turn), a dict (the whole JSON body), an aiohttp response, or a
fault of the connection (`reset`, `truncated`, `stalled`, `hanging`). The function that returns it
gets the request's JSON and may be a coroutine.

Like vLLM, the server tokenizes (`/tokenize`, one token per byte) and continues token ids
(`/v1/completions`).
"""

import asyncio
import inspect
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
Reply = str | dict[str, Any] | web.StreamResponse | Fault
Script = Callable[[dict[str, Any]], Any]


def completion(text: str | None, **changes: Any) -> dict[str, Any]:
    """Returns the JSON body of a chat completion; `changes` replace its fields.

    `message` and `finish_reason` go to the one choice, the rest to the top level.
    """
    message = {"role": "assistant", "content": text} | changes.pop("message", {})
    finish = changes.pop("finish_reason", "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    body = {"id": "c", "object": "chat.completion", "created": 0, "model": "served"}
    return body | {"choices": [choice], "usage": usage} | changes


def ids_completion(asked: dict[str, Any], text: str, **changes: Any) -> dict[str, Any]:
    """Returns the JSON body of vLLM's reply to token ids; `changes` replace fields of the choice.

    The text ends before the first stop string, the sampled ids after it.
    """
    stop = next((one for one in asked.get("stop", ()) if one in text), None)
    kept = text if stop is None else text.partition(stop)[0]
    ids = encoded(kept + (stop or ""))
    logprobs = {"token_logprobs": [-i / 7 for i in ids]}
    choice = {"text": kept, "finish_reason": "stop", "stop_reason": stop, "logprobs": logprobs}
    choice |= {"prompt_token_ids": asked["prompt"], "token_ids": ids} | changes
    return {"model": "served", "choices": [choice]}


def encoded(text: str) -> list[int]:
    return list(text.encode())


def failure(status: int, message: str = "no", **headers: str) -> web.Response:
    """Returns an error response in OpenAI's form; header names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response({"error": {"message": message}}, status=status, headers=named)


async def reset(request: web.Request) -> web.StreamResponse:
    """Resets the connection (RST) without a reply."""
    assert request.transport is not None
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()
    return web.Response()


async def truncated(request: web.Request) -> web.StreamResponse:
    """Sends part of a reply and closes the connection."""
    response = await _half(request)
    assert request.transport is not None
    request.transport.close()
    return response


async def stalled(request: web.Request) -> web.StreamResponse:
    """Sends part of a reply and keeps the connection open."""
    await _half(request)
    return await hanging(request)


async def hanging(_: web.Request) -> web.StreamResponse:
    """Accepts the request and never replies."""
    await asyncio.Event().wait()
    raise AssertionError("never")


async def _half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    response.content_type = "application/json"
    await response.prepare(request)
    await response.write(b'{"id": "c", "choices": [')
    return response


@dataclass
class FakeEndpoint:
    """The server.

    Attributes:
        requests, headers, queries: JSON bodies, headers and parameters of all calls of the model.
        received: Event that is set at the first call of the model.
        tokenized: JSON bodies of the calls of `/tokenize`.
        models_status: Status of a failure of `/models`; None if it works.
        under_way, most: Number of calls being answered, and the highest number at once.
        aborted: Event that is set when a client disconnects before its reply.
    """

    script: Script = lambda _: "Paris"
    models: tuple[str, ...] = ("policy",)
    owned_by: str = "vllm"
    key: str | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    received: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: int = 0
    most: int = 0
    base_url: str = ""
    models_status: int | None = None
    tokenized: list[dict[str, Any]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        app = web.Application(middlewares=[self._authorised])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        self._port = 0
        await self.listen()
        host, self._port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{self._port}/v1"
        return self

    async def listen(self) -> None:
        """Accepts connections, after `refuse` at the same address."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await self._site.start()

    async def refuse(self) -> None:
        """Cuts all connections and refuses new ones."""
        await self._site.stop()
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def settle(self) -> None:
        """Waits until all connections are closed, so all requests of a dead client are listed.

        Call it from another thread than the endpoint's.
        """

        async def closed() -> None:
            assert self._runner.server is not None
            while self._runner.server.connections:  # noqa: ASYNC110  (aiohttp has no such event)
                await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(closed(), self.loop).result(60)

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("Authorization")
        if self.key is not None and sent != f"Bearer {self.key}":
            return failure(401, f"Incorrect API key provided: {sent}")
        return await handler(request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.queries.append(dict(request.query))
        self.received.set()
        if body["model"] not in self.models:
            return failure(404, f"The model `{body['model']}` does not exist.")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            reply = self.script(body)
            if inspect.isawaitable(reply):
                reply = await reply
            if inspect.iscoroutinefunction(reply):
                reply = await reply(request)
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        finally:
            self.under_way -= 1
        if isinstance(reply, str):
            reply = ids_completion(body, reply) if "prompt" in body else completion(reply)
        return web.json_response(reply) if isinstance(reply, dict) else reply

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.tokenized.append(body)
        text = body.get("prompt", "")
        for turn in body.get("messages", ()):
            text += f"[{turn['role']}]{turn['content']}"
        if body.get("add_generation_prompt"):
            text += "[assistant]"
        return web.json_response({"tokens": encoded(text)})

    async def _models(self, _: web.Request) -> web.Response:
        if self.models_status is not None:
            return failure(self.models_status)
        listed = [{"id": m, "object": "model", "owned_by": self.owned_by} for m in self.models]
        return web.json_response({"object": "list", "data": listed})
