"""`map_concurrently`: which items run, which results it yields, and how an error ends it."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from branchwise.base.concurrent_map import map_concurrently
from branchwise.base.errors import BudgetExceeded, EndpointError


async def test_a_fatal_error_keeps_finished_results_and_retrieves_all_errors() -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    cancelled: list[str] = []

    async def work(item: str) -> str:
        if item.startswith("bad"):
            raise EndpointError("no such model", fatal=True)
        if item == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(item)
        return item

    items = ("bad1", "good1", "slow", "bad2", "good2", "bad3")
    finished = []
    with pytest.raises(EndpointError):
        async for item in map_concurrently(items, work, len(items)):
            finished.append(item)
    gc.collect()
    assert sorted(finished) == ["good1", "good2"]
    assert cancelled == ["slow"]
    assert unseen == []


async def test_items_are_consumed_only_when_their_work_can_start() -> None:
    taken: list[int] = []
    running: set[int] = set()
    most = 0

    def items() -> Iterator[int]:
        for number in range(9):
            taken.append(number)
            yield number

    async def work(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(number)
        return number

    found: list[int] = []
    async for number in map_concurrently(items(), work, 3):
        assert len(taken) <= len(found) + 6, "three being yielded and three that run"
        found.append(number)
    assert sorted(found) == list(range(9))
    assert most == 3


async def test_a_reached_limit_does_not_stop_the_other_items() -> None:
    async def work(number: int) -> int:
        if number == 0:
            raise BudgetExceeded("limits.max_tokens 10 reached")
        await asyncio.sleep(0)
        return number

    assert sorted([n async for n in map_concurrently(range(4), work, 2)]) == [1, 2, 3]


async def test_an_error_of_the_item_source_ends_the_running_work() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise ValueError("damaged")

    async def work(number: int) -> int:
        await asyncio.Event().wait()
        return number

    with pytest.raises(ValueError, match="damaged"):
        [n async for n in map_concurrently(items(), work, 2)]
    assert len(asyncio.all_tasks()) == 1
