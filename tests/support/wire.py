"""Loopback servers that record their requests, and certificates for them."""

import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Listener:
    """A server that accepts requests to any path.

    Attributes:
        address: Address as `scheme://host:port`.
        requests: Method and path of each request, in order; for a proxy, the whole address.
        headers: Headers of each request.
    """

    address: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@asynccontextmanager
async def listening(
    answer: Answer, host: str = "127.0.0.1", trust: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    """Yields the server, which answers until the block ends."""
    listener = Listener()

    async def keep(request: web.BaseRequest) -> web.StreamResponse:
        listener.requests.append((request.method, request.raw_path))
        listener.headers.append(dict(request.headers))
        return await answer(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(keep))
    await runner.setup()
    site = web.TCPSite(runner, host, 0, ssl_context=trust, shutdown_timeout=0.1)
    await site.start()
    port = runner.addresses[0][1]
    listener.address = f"{'https' if trust else 'http'}://{host}:{port}"
    try:
        yield listener
    finally:
        await runner.cleanup()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Creates a self-signed certificate for 127.0.0.1; returns it with a server context."""
    kept, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(kept)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kept, key)
    return kept, context
