"""Runs a server in a thread, for stages that run their own event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from fake_endpoint import FakeEndpoint, Script

Opened = TypeVar("Opened")


@contextmanager
def serving(script: Script, **settings: Any) -> Iterator[FakeEndpoint]:
    """Yields a `FakeEndpoint`, which answers on loopback until the block ends."""
    with in_thread(FakeEndpoint(script, **settings)) as endpoint:
        yield endpoint


@contextmanager
def in_thread(server: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Enters a server in the event loop of a new thread, which runs until the block ends."""
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()
    opened: list[Opened] = []

    async def live() -> None:
        async with server as entered:
            opened.append(entered)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    started.wait()
    try:
        yield opened[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
