"""Processes many questions at once, for annotation, evaluation and fresh rollouts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

from .errors import BudgetExceeded

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_concurrently(
    items: Iterable[Item],
    work: Callable[[Item], Coroutine[Any, Any, Result]],
    limit: int | Callable[[], int],
) -> AsyncGenerator[Result, None]:
    """Runs `work` over the items, at most `limit` at a time; yields results as they finish.

    A limit that changes is a function, which is called when an item could start. An item is taken
    from `items` when its work can start. If a limit stops an item (`BudgetExceeded`), it yields
    nothing, and the others continue so that their calls are stored.
    Any other exception is raised after the results that finished with it; the items still running
    are cancelled. Their model calls end and are stored (`engines.ledgered`).
    """
    waiting = iter(items)
    running: set[asyncio.Task[Result]] = set()
    try:
        while True:
            most = limit if isinstance(limit, int) else limit()
            for item in islice(waiting, max(0, most - len(running))):
                running.add(asyncio.create_task(work(item)))
            if not running:
                return
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            # Retrieve all errors before yielding, or asyncio logs "exception was never retrieved".
            errors = [error for task in finished if (error := task.exception()) is not None]
            for task in finished:
                if task.exception() is None:
                    yield task.result()
            for error in errors:
                if not isinstance(error, BudgetExceeded):
                    raise error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
