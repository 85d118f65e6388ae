"""`make serve-model`: a vLLM server for the recipe's policy, judge or verifier until it is stopped.

    branchwise serve-model --config configs/atlas.yaml --role policy --port 8000

Prefix caching is on. A trained adapter is served as LoRA; the served name is the hash of its
content. After a crash the server is restarted, up to a limit. It stops with Ctrl-C, SIGTERM or
SIGHUP, or when this process ends for any reason.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal, NoReturn

from branchwise.base import ConfigError, EndpointError, is_loopback
from branchwise.engines import (
    EVERY_ADDRESS,
    KEY_VARIABLE,
    ModelSettings,
    VllmServer,
    enter_all,
    key_in,
    server_for,
)
from branchwise.runs import Recipe, StageContext, StageResult, on_stop_signal
from branchwise.storage import cache_section


def serve_model(
    context: StageContext,
    role: Annotated[Literal["policy", "judge", "verifier"], "whose model"] = "policy",
    port: Annotated[int | None, "of the first server; default: free ones"] = None,
    host: Annotated[str, "address to listen on"] = "127.0.0.1",
) -> StageResult:
    """Runs the stage (see module)."""
    settings = served_settings(context.recipe, role)
    context.log(f"serve-model: {settings.model} with vLLM; its weights are made ready first")
    if context.dry_run:
        return StageResult({"model": settings.model, "dry_run": True})
    is_private = is_loopback(f"http://{host}") and host != EVERY_ADDRESS
    if not is_private and key_in(KEY_VARIABLE) is None:
        raise ConfigError(
            f"--host {host}: other machines could use the server without a key: set {KEY_VARIABLE}"
        )
    logs, log = cache_section("logs"), context.log
    servers = [
        server_for(settings, logs, port and port + number, log, replica=number, host=host)
        for number in range(settings.replicas)
    ]
    return StageResult(asyncio.run(_run_servers(context, settings, servers)))


def served_settings(recipe: Recipe, role: str) -> ModelSettings:
    """Returns the settings of the model to serve; for an endpoint's model, with its `weights`.

    Raises:
        ConfigError: If the recipe lacks this block.
    """
    block: ModelSettings | None = getattr(recipe, role)
    if block is None:
        raise ConfigError(
            f"--role {role}: the recipe lacks a `{role}` block. Add one, or serve the policy"
        )
    is_remote = block.engine == "openai"
    return block.model_copy(update={"model": block.trainable}) if is_remote else block


async def _run_servers(
    context: StageContext, settings: ModelSettings, servers: Sequence[VllmServer]
) -> dict[str, Any]:
    """Runs the servers until a stop signal; returns the stage's totals.

    Raises:
        EndpointError: If one did not start, or all crashed too often.
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    with on_stop_signal(lambda _: loop.call_soon_threadsafe(stopped.set)):
        serving = asyncio.create_task(_serve(context, settings, servers))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving  # raises
        context.log("stopping")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    return {
        "base_urls": [server.base_url for server in servers],
        "model": servers[0].model,
        "starts": sum(server.life.number for server in servers if server.life),
    }


async def _serve(
    context: StageContext, settings: ModelSettings, servers: Sequence[VllmServer]
) -> NoReturn:
    async with AsyncExitStack() as stack:
        await enter_all(stack, servers)
        urls = json.dumps([server.base_url for server in servers])
        at = f"base_url: {urls[1:-1]}" if len(servers) == 1 else f"base_urls: {urls}"
        context.log(
            f"serving {settings.model} at {urls[1:-1]}\n  served model: {servers[0].model}\n"
            f"  in a recipe: {{engine: vllm, model: {settings.model}, {at}}}"
        )
        context.log("Ctrl-C stops it")
        for ended in asyncio.as_completed([server.given_up() for server in servers]):
            reason = await ended
            context.log(reason)
        raise EndpointError(reason, fatal=True)
