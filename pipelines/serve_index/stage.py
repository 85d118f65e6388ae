"""`make serve-index`: serves the recipe's index to other machines, until it is stopped.

    branchwise serve-index --config configs/mine.yaml --host 0.0.0.0 --port 8001

The server speaks Search-R1's `/retrieve` protocol (`retrieval.index_server`). Recipes use it with
`retrieval: {kind: http, url: …}`; their passages have the ids of this recipe's corpus. It stops
with Ctrl-C, SIGTERM or SIGHUP.
"""

import asyncio
from typing import Annotated

from branchwise.base import ConfigError
from branchwise.retrieval import Retriever, open_retriever, serving
from branchwise.runs import StageContext, StageResult, on_stop_signal, open_data


def serve_index(
    context: StageContext,
    host: Annotated[str, "address to listen on; anyone who reaches it may search"] = "127.0.0.1",
    port: Annotated[int, "0: one that is free"] = 0,
) -> StageResult:
    """Runs the stage (see module).

    Raises:
        ConfigError: If the recipe's index is itself a server's, or the port is taken.
    """
    kind = context.recipe.retrieval.kind
    if kind == "http":
        raise ConfigError(
            "retrieval.kind is http, which has no index of its own: set it to bm25, dense or fusion"
        )
    passages = open_data(context.recipe).passages
    context.log(f"serve-index: {kind} index of {len(passages):,} passages")
    if context.dry_run:
        return StageResult({"passages": len(passages), "dry_run": True})
    retriever = open_retriever(context.recipe.retrieval, list(passages), log=context.log)
    try:
        url = asyncio.run(_serve(context, retriever, host, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    return StageResult({"url": url, "passages": len(passages)})


async def _serve(context: StageContext, retriever: Retriever, host: str, port: int) -> str:
    """Serves until a stop signal; returns the address."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    with on_stop_signal(lambda _: loop.call_soon_threadsafe(stopped.set)):
        async with serving(retriever, host, port) as url:
            context.log(f'serving; in a recipe: retrieval: {{kind: http, url: "{url}"}}')
            context.log("Ctrl-C stops it")
            await stopped.wait()
    return url
