"""Runs a `FakeEndpoint` in a thread, for stages that run their own event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fake_endpoint import FakeEndpoint, Script


@contextmanager
def serving(script: Script, **settings: Any) -> Iterator[FakeEndpoint]:
    """Yields the endpoint, which answers on loopback until the block ends."""
    endpoint = FakeEndpoint(script, **settings)
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def live() -> None:
        async with endpoint:
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    started.wait()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
