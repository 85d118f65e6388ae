"""`make serve`: a vLLM server for the recipe's policy, judge or verifier, until it is stopped.

    branchwise serve --config configs/atlas.yaml --role policy --port 8000

Prefix caching is on. A trained adapter is served as LoRA; the served name is the hash of its
content. After a crash the server is restarted, up to a limit. It stops with Ctrl-C, SIGTERM or
SIGHUP, or when this process ends for any reason.
"""

import asyncio
from typing import Annotated, Any, Literal

from base.errors import ConfigError, EndpointError
from engines.settings import ModelSettings
from engines.vllm.engine import server_for
from engines.vllm.server import VllmServer
from runs.factories import server_logs
from runs.recipe import Recipe
from runs.stage import StageContext, StageResult, on_stop_signal


def serve(
    context: StageContext,
    role: Annotated[Literal["policy", "judge", "verifier"], "whose model"] = "policy",
    port: Annotated[int | None, "default: one that is free"] = None,
) -> StageResult:
    """Runs the stage (see module)."""
    settings = served_settings(context.recipe, role)
    context.log(f"serve: {settings.model} with vLLM; its weights are made ready first")
    if context.dry_run:
        return StageResult({"model": settings.model, "dry_run": True})
    server = server_for(settings, server_logs(), port, context.log)
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
        stopping = asyncio.create_task(stopped.wait())
        starting = asyncio.create_task(server.__aenter__())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not stopped.is_set():
                await starting
                context.log(
                    f"serving {settings.model} at {server.base_url}\n  served model: "
                    f"{server.model}\n  in a recipe: {{engine: vllm, model: {settings.model}, "
                    f'base_url: "{server.base_url}"}}'
                )
                context.log("Ctrl-C stops it")
                dying = asyncio.create_task(server.given_up())
                await asyncio.wait([dying, stopping], return_when=asyncio.FIRST_COMPLETED)
                if dying.done():
                    raise EndpointError(dying.result(), fatal=True)
            context.log("stopping the server")
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await server.__aexit__(None, None, None)
    starts = server.life.number if server.life else 0
    return {"base_url": server.base_url, "model": server.model, "starts": starts}
