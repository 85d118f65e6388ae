"""Two real vLLM servers on the CPU with one model; one is killed while it answers.

Run by `make test-vllm`.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import State
from branchwise.engines.fleet import FleetEngine, each_server
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling, Structure
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.vllm_engine import VllmEngine
from branchwise.runs.factories import engine_for
from branchwise.runs.recipe import LimitSettings

pytestmark = pytest.mark.vllm

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = ModelSettings(
    engine="vllm", model=str(REPOSITORY / "models" / "smollm2-135m-atlas"), replicas=2
)
CITIES = ("Lyon", "Osaka", "Lima", "Kyoto", "Perth", "Turin", "Quito", "Porto")
ENDLESS = Structure("regex", "[a-z ]{2000}")
CHECK_TIMEOUT_S = 1800.0
"""Anything that takes longer has hung. This is not a limit on speed."""


def asking(city: str, draw: int, tokens: int = 24, **changes: object) -> SampleRequest:
    messages = ReasonRAG().messages(State(f"In which country does {city} lie?"), last=False)
    sampling = Sampling(max_new_tokens=tokens)
    identity = CallIdentity("policy", city, "0", draw)
    return SampleRequest(messages, sampling, identity, **changes)  # type: ignore[arg-type]


def test_a_killed_server_costs_only_its_calls_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    messages: list[str] = []

    async def run() -> None:
        limits = LimitSettings(max_concurrency=16, timeout_s=600.0)
        fleet = engine_for(SETTINGS, limits, tmp_path / "logs", log=messages.append)
        assert isinstance(fleet, FleetEngine)
        async with fleet:
            short = [asking(city, draw) for draw in range(3) for city in CITIES]
            assert all(c.text for c in await asyncio.gather(*map(fleet.sample, short)))
            assert [replica.answered for replica in fleet.replicas] == [12, 12]
            victim = fleet.replicas[1].engine
            assert isinstance(victim, VllmEngine)
            assert victim.server is not None
            first = await victim.server.healthy()
            long = [asking(city, 9, 200, structure=ENDLESS) for city in CITIES]
            calls = [asyncio.ensure_future(fleet.sample(request)) for request in long]
            while victim.in_progress < 4:  # noqa: ASYNC110  (it has no event)
                await asyncio.sleep(0.01)
            os.kill(first.pid, signal.SIGKILL)
            completions = await asyncio.gather(*calls)
            assert all(completion.text for completion in completions)
            assert fleet.repeated == 4, "the calls that were in progress at the killed server"
            await victim.server.healthy()
            while len(each_server(fleet)) < 2:  # noqa: ASYNC110  (it is asked every second)
                await asyncio.sleep(0.1)
            print("\n".join(["", *messages, *map(str, fleet.describe().items())]), flush=True)

    asyncio.run(asyncio.wait_for(run(), CHECK_TIMEOUT_S))
    assert any("questions move to other servers" in message for message in messages)
