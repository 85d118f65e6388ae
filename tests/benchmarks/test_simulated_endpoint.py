"""The simulated endpoint: calls occupy its slots, and a reply depends only on the request."""

import asyncio
from typing import Any

import aiohttp
import pytest

from benchmarks.endpoint_process import Occupancy, Simulated, serving


async def _call_with_seeds(endpoint: Simulated, seeds: list[int]) -> list[tuple[int, Any]]:
    """Returns status and text of one call per seed, all sent at once."""

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


async def test_calls_wait_for_a_slot_and_equal_requests_have_equal_replies() -> None:
    with serving("--slots", "2", "--latency-s", "0.01") as endpoint:
        first = await _call_with_seeds(endpoint, list(range(8)))
        assert first == await _call_with_seeds(endpoint, list(range(8)))
        assert len({text for _, text in first}) > 1
        log = endpoint.occupancy()
    assert (log.requests, log.distinct) == (16, 8)
    # Call n + 2 starts after call n has ended, as there are two slots.
    assert all(began >= ended for began, ended in zip(log.began[2:], log.ended, strict=False))


def test_share_busy_counts_slot_time_and_trims_the_edges() -> None:
    # Two slots, twenty calls of a second: one after the other for ten seconds, then two at a time.
    began = [float(second) for second in range(10)] + [10 + n // 2 for n in range(10)]
    log = Occupancy(slots=2, distinct=20, came=began, began=began, ended=[b + 1 for b in began])
    assert log.busy_slot_s(0, 10) == pytest.approx(10)
    assert log.share_busy(0.0) == pytest.approx(20 / 30)
    assert log.share_busy(0.05) == pytest.approx(19 / 28)
