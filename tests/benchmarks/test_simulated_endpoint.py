"""The simulated endpoint: its slots are real, its replies follow from the request alone."""

import asyncio
from typing import Any

import aiohttp
import pytest

from benchmarks.endpoint_process import Occupancy, Simulated, serving


async def _asked(endpoint: Simulated, seeds: list[int]) -> list[tuple[int, Any]]:
    """Status and text of a call a seed, all at once."""

    async def one(session: aiohttp.ClientSession, seed: int) -> tuple[int, Any]:
        messages = [
            {"role": "system", "content": "Answer the question."},
            {"role": "user", "content": "Question: What is the capital of the country of Holm 7?"},
        ]
        body = {"model": "policy", "messages": messages, "seed": seed}
        async with session.post(f"{endpoint.base_url}/chat/completions", json=body) as response:
            reply = await response.json()
            return response.status, reply.get("choices", [{}])[0].get("message", {}).get("content")

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(one(session, seed) for seed in seeds))


async def test_slots_are_taken_in_turn_and_a_request_has_one_reply() -> None:
    with serving("--slots", "2", "--latency-s", "0.01") as endpoint:
        first = await _asked(endpoint, list(range(8)))
        assert first == await _asked(endpoint, list(range(8)))
        assert len({text for _, text in first}) > 1
        log = endpoint.occupancy()
    assert (log.requests, log.distinct, log.rejected) == (16, 8, 0)
    # The third call began no earlier than the first one ended, and so on.
    assert all(began >= ended for began, ended in zip(log.began[2:], log.ended, strict=False))


async def test_a_full_endpoint_that_rejects_says_when_to_come_back() -> None:
    with serving("--slots", "1", "--latency-s", "0.5", "--reject") as endpoint:
        statuses = [status for status, _ in await _asked(endpoint, [1, 2, 3])]
        assert sorted(statuses) == [200, 429, 429]
        assert endpoint.occupancy().rejected == 2


def test_occupancy_counts_slot_time_between_the_edges() -> None:
    # Two slots, twenty calls of a second: one after the other for ten seconds, then two at a time.
    began = [float(second) for second in range(10)] + [10 + n // 2 for n in range(10)]
    log = Occupancy(
        slots=2, rejected=0, distinct=20, came=began, began=began, ended=[b + 1 for b in began]
    )
    assert log.busy_slot_s(0, 10) == pytest.approx(10)
    assert log.share_busy(0.0) == pytest.approx(20 / 30)
    assert log.share_busy(0.05) == pytest.approx(19 / 28)
