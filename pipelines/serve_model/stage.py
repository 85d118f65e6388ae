"""`make serve-model`: a vLLM server for the recipe's policy, judge or verifier until it is stopped.

    branchwise serve-model --config configs/atlas.yaml --role policy --port 8000

Prefix caching is on. A trained adapter is served as LoRA; the served name is the hash of its
content. After a crash the server is restarted, up to a limit. It stops with Ctrl-C, SIGTERM or
SIGHUP, or when this process ends for any reason.
"""

import asyncio
from typing import Annotated, Any, Literal, NoReturn

from branchwise.base import ConfigError, EndpointError
from branchwise.engines import ModelSettings, VllmServer, server_for
from branchwise.runs import Recipe, StageContext, StageResult, on_stop_signal
from branchwise.storage import cache_section


def serve_model(
    context: StageContext,
    role: Annotated[Literal["policy", "judge", "verifier"], "whose model"] = "policy",
    port: Annotated[int | None, "default: one that is free"] = None,
) -> StageResult:
    """Runs the stage (see module)."""
    settings = served_settings(context.recipe, role)
    context.log(f"serve-model: {settings.model} with vLLM; its weights are made ready first")
    if context.dry_run:
        return StageResult({"model": settings.model, "dry_run": True})
    server = server_for(settings, cache_section("logs"), port, context.log)
    return StageResult(asyncio.run(_run_server(context, settings, server)))


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


async def _run_server(
    context: StageContext, settings: ModelSettings, server: VllmServer
) -> dict[str, Any]:
    """Runs the server until a stop signal; returns the stage's totals.

    Raises:
        EndpointError: If it did not start, or crashed too often.
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    with on_stop_signal(lambda _: loop.call_soon_threadsafe(stopped.set)):
        serving = asyncio.create_task(_serve(context, settings, server))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving  # raises
        context.log("stopping the server")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    starts = server.life.number if server.life else 0
    return {"base_url": server.base_url, "model": server.model, "starts": starts}


async def _serve(context: StageContext, settings: ModelSettings, server: VllmServer) -> NoReturn:
    async with server:
        context.log(
            f"serving {settings.model} at {server.base_url}\n  served model: {server.model}\n"
            f"  in a recipe: {{engine: vllm, model: {settings.model}, "
            f'base_url: "{server.base_url}"}}'
        )
        context.log("Ctrl-C stops it")
        raise EndpointError(await server.given_up(), fatal=True)
