"""Loads an adapter into a running vLLM server, under the hash of its content."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from branchwise.base import EndpointError, HttpClient, Redirected, ReplyTooLarge, shown_url

from ..endpoint.client import checked_url, key_in
from ..endpoint.endpoint_errors import redacted
from ..settings import ModelSettings
from .command import RUNTIME_ADAPTERS
from .served_weights import served_name
from .vllm_engine import KEY_VARIABLE
from .vllm_server import VllmServer

_TIMEOUT_S = 300.0


@asynccontextmanager
async def adapter_on(settings: ModelSettings, server: VllmServer | None) -> AsyncIterator[None]:
    """Loads a policy's last adapter into a server during a block; the server has the rest merged.

    Args:
        settings: Model settings: `model` is a policy folder, `base_url` the server's address unless
            `server` is given.
        server: Server of our own. If it dies, the next process starts with the adapter.

    Raises:
        EndpointError: If the server does not load the adapter (fatal).
    """
    name, folder = served_name(settings), (Path(settings.model) / "adapter").resolve()
    url = checked_url(settings) if server is None else server.base_url
    life = None if server is None else await server.healthy()
    try:
        if server is not None:
            server.adapters = {name: folder}
        try:
            await _ask(url, "load", {"lora_name": name, "lora_path": str(folder)})
        except EndpointError:
            if server is None or life is None or not await server.outlived(life):
                raise
            await server.healthy()
        yield
    finally:
        if server is not None:
            server.adapters = {}
        with suppress(EndpointError):  # the next adapter replaces it anyway
            await _ask(url, "unload", {"lora_name": name})


async def _ask(url: str, verb: str, body: dict[str, str]) -> None:
    import aiohttp

    key, address = key_in(KEY_VARIABLE), f"{url.rstrip('/')}/{verb}_lora_adapter"
    headers = {"Content-Type": "application/json"}
    secrets = (key,) if key else ()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        async with asyncio.timeout(_TIMEOUT_S), HttpClient(url) as http:
            reply = await http.ask("POST", address, headers=headers, body=json.dumps(body).encode())
    except (aiohttp.ClientError, OSError, Redirected, ReplyTooLarge) as error:
        fault = redacted(f"{type(error).__name__}: {error}", secrets)
    else:
        # Left by a killed training. The name is a hash of the content, so it is the same adapter.
        if reply.status == 200 or b"already been loaded" in reply.body:
            return
        fault = f"{reply.status}: {redacted(reply.body.decode('utf-8', 'replace'), secrets)}"
    raise EndpointError(
        f"{shown_url(url)}: the server did not {verb} the adapter {body} ({fault}). It needs "
        f"{RUNTIME_ADAPTERS}=True in its environment, --enable-lora, a --max-lora-rank of at least "
        "the adapter's rank, and access to this folder",
        fatal=True,
    )
