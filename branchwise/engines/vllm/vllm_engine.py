"""Sampling from a vLLM server that the stage starts.

Entering the engine starts the server; leaving it stops the server. If the server dies during a
call, the call is retried with the same seed once the restarted server answers.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from branchwise.base import EndpointError, Log, ServerLost

from ..fleet import MOST_LOST_SERVERS, ServedModel
from ..sampling import Capabilities, Completion, Engine, SampleRequest
from ..settings import ModelSettings
from .command import LOOPBACK, gpus_of, installed_vllm, server_command, server_environment
from .served_weights import prepare_weights, served_digest, served_name
from .vllm_server import VllmServer, free_port

if TYPE_CHECKING:
    from ..endpoint.openai import OpenAIEngine
    from ..endpoint.replies import ReasoningRule

KEY_VARIABLE = "VLLM_API_KEY"
"""Variable from which vLLM itself reads the key that clients must send; it gets no other key."""


def server_for(
    settings: ModelSettings,
    logs: Path,
    port: int | None = None,
    log: Log | None = None,
    rank: int | None = None,
    replica: int = 0,
    host: str = LOOPBACK,
) -> VllmServer:
    """Returns a server for `policy:` or `judge:` settings; enter it to start it.

    Args:
        settings: Model settings; `model`, `dtype` and `server_args` count.
        logs: Folder for the server's log.
        port: Port to listen on; None for a free one.
        log: Callback for messages about the server's start.
        rank: LoRA rank of adapters added while the server runs (`engines.vllm.adapters`).
        replica: Number of the server in its fleet, from 0; decides its GPUs.
        host: Address to listen on.

    Raises:
        ConfigError: If vLLM, the weights or a package are missing.
        StorageError: If the cache cannot be written.
    """
    vllm, served = installed_vllm(), prepare_weights(settings, log, rank)
    port = port or free_port()
    numbered = f"-{replica}" if settings.replicas > 1 else ""
    gpus = [] if vllm.on_cpu else gpus_of(settings, replica, os.environ)
    return VllmServer(
        server_command(vllm, served, settings.dtype, host, port, _arguments(settings)),
        server_environment(vllm, served, os.environ, gpus),
        logs / f"vllm-{served.name.rpartition('/')[2]}{numbered}.log",
        model=served.name,
        host=host,
        port=port,
        log=log,
    )


def _arguments(settings: ModelSettings) -> tuple[str, ...]:
    """Returns the server's further arguments; those of the recipe come last, so they win."""
    gpus = settings.gpus_per_replica or 1
    split = ("--tensor-parallel-size", str(gpus)) if gpus > 1 else ()
    return (*split, *settings.server_args)


class VllmEngine:
    """One model on a vLLM server, either our own or one that already runs.

    A server of our own runs as long as the `async with` block. With `base_url` in the settings, or
    with a running server, the engine starts nothing. That server must serve the same model under
    the same name as `branchwise serve-model`.

    Attributes:
        model: Model name as the user wrote it.
        digest: Hash of weights, adapters, tokenizer, template and serving options.
        server: The started or given server; None outside the block, or if only `base_url` is set.
    """

    capabilities = Capabilities(structured_output=True, json_schema=True, token_ids=True)

    @property
    def reasoning_rule(self) -> "ReasoningRule":
        """How replies are separated from reasoning; use inside the block."""
        assert self._endpoint is not None
        return self._endpoint.reasoning_rule

    def __init__(
        self,
        settings: ModelSettings,
        connect: Callable[..., "OpenAIEngine"],
        logs: Path,
        log: Log | None = None,
        server: VllmServer | None = None,
        *,
        replica: int = 0,
        gives_way: bool = False,
    ) -> None:
        """Computes the digest; entering the engine starts the server.

        Args:
            settings: Model settings.
            connect: Function that makes the engine for the server's endpoint. Its arguments
                `known_as` and `digest` identify the model in rows.
            logs: Folder for the server's log.
            log: Callback for messages about the server's start.
            server: Server that already runs, and keeps running after the block.
            replica: Number of the server in its fleet, from 0.
            gives_way: Whether other servers take the calls of one that died.

        Raises:
            ConfigError: If the model's name leads to no usable files.
        """
        self.model = settings.model
        self.digest = served_digest(settings)
        self.server: VllmServer | None = None
        self._settings = settings
        self._served_as = served_name(settings)
        self._connect = connect
        self._server_for = partial(server_for, settings, logs, log=log, replica=replica)
        self._gives_way = gives_way
        self._running = server
        self._stack = AsyncExitStack()
        self._endpoint: OpenAIEngine | None = None

    async def __aenter__(self) -> Self:
        """Starts the server and waits until it answers (a minute or more).

        Raises:
            ConfigError: If vLLM, the weights or a package are missing.
            EndpointError: If the server does not start, or a running server lacks the model.
        """
        async with AsyncExitStack() as stack:
            url, server = self._settings.base_url, self._running
            if server is None and url is None:
                server = await asyncio.to_thread(self._server_for)
                await stack.enter_async_context(server)
            if server is not None:
                url = server.base_url
            endpoint = self._connect(self._at(url), known_as=self.model, digest=self.digest)
            await stack.enter_async_context(endpoint)
            await endpoint.check()
            self._endpoint, self.server, self._stack = endpoint, server, stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._endpoint = self.server = None
        await self._stack.aclose()

    @property
    def in_progress(self) -> int:
        """Number of calls that the server works on."""
        return 0 if self._endpoint is None else self._endpoint.in_progress

    async def served_model(self) -> ServedModel:
        """Returns what the server says about its model, once it answers.

        Raises:
            EndpointError: If it does not answer.
        """
        if self._endpoint is None:
            raise EndpointError("use the vLLM engine inside `async with`", fatal=True)
        return await self._endpoint.served_model()

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion (see `engines.sampling.Engine.sample`).

        Raises:
            EndpointError: If the server refused, or died too often: fatal over all calls, not fatal
                for this call (`MOST_LOST_SERVERS`).
            ServerLost: If the server died and others take its calls.
        """
        endpoint, server, lost = self._endpoint, self.server, 0
        if endpoint is None:
            raise EndpointError("use the vLLM engine inside `async with`", fatal=True)
        if server is None:
            return self._named(await endpoint.sample(request), 0)
        while lost < MOST_LOST_SERVERS:
            completion = await _sample_unless_server_dies(server, endpoint, request)
            if completion is not None:
                return self._named(completion, lost)
            if self._gives_way:
                raise ServerLost(f"the vLLM server at {server.base_url} ended", ended=True)
            lost += 1
        raise EndpointError(
            f"the vLLM server died {lost} times during this call; its log is {server.log_file}",
            attempts=lost,
        )

    def _named(self, completion: Completion, lost: int) -> Completion:
        """Returns the completion with the user's model name; its attempts include `lost` ones."""
        model = self.model if completion.model == self._served_as else completion.model
        return replace(completion, model=model, attempts=completion.attempts + lost)

    def _at(self, url: str | None) -> ModelSettings:
        """Returns endpoint settings for a vLLM server at `url`."""
        return self._settings.model_copy(
            update={
                "engine": "openai",
                "base_url": url,
                "model": self._served_as,
                "weights": self._settings.trainable,
                "api_key_env": KEY_VARIABLE,
                "structured_output": "vllm",
            }
        )


async def _sample_unless_server_dies(
    server: VllmServer, endpoint: Engine, request: SampleRequest
) -> Completion | None:
    """Draws from `endpoint`; returns None if the server died first.

    The endpoint's own retries are not enough, because they do not wait for a restarting server.
    """
    life = await server.healthy()
    call = asyncio.ensure_future(endpoint.sample(request))
    try:
        await asyncio.wait([call, life.ended], return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            return None
        try:
            return call.result()
        except EndpointError:
            if not await server.outlived(life):
                raise
            return None
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
