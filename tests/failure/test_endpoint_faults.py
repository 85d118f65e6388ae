"""Faults of an endpoint: a real server on loopback, the real client, whole stages."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from command_line import branchwise
from fake_endpoint import FakeEndpoint, Reply, Script, failure, hanging, reset, stalled, truncated
from loopback import serving
from tiny_dataset import policy, recipe

from branchwise.base.errors import EndpointError
from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.endpoint.retry import RetryPolicy
from branchwise.engines.sampling import CallIdentity, Completion, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.storage.ledger import Ledger
from branchwise.storage.manifest import load_manifest, verify_manifest
from branchwise.storage.parts import question_ids, read_parts
from branchwise.types import Message

pytestmark = pytest.mark.failure

CANARY = 'sk-canary/42+"quoted"=='
HURRIED = RetryPolicy(
    base_s=0.01, longest_retry_after_s=0.2, first_probe_s=0.02, longest_probe_s=0.1
)


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)


def engine(server: FakeEndpoint, retry: RetryPolicy = HURRIED, **bounds: Any) -> OpenAIEngine:
    settings = ModelSettings(
        engine="openai", model="policy", base_url=server.base_url, structured_output="none"
    )
    return OpenAIEngine(settings, retry=retry, **bounds)


def request(number: int) -> SampleRequest:
    return SampleRequest(
        (Message("user", str(number)),), Sampling(), CallIdentity("policy", "q", f"tree/{number}")
    )


async def replies(asked: OpenAIEngine, calls: int) -> list[Completion]:
    """Makes `calls` calls at the same time; each must get its own reply."""
    said = await asyncio.gather(*(asked.sample(request(number)) for number in range(calls)))
    assert [one.text for one in said] == [str(number) for number in range(calls)]
    return said


def echo(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def at_first(fault: Reply, every: int = 1) -> Script:
    """Answers the first request of every n-th call with the fault, and the next one normally."""
    seen: set[str] = set()

    def script(body: dict[str, Any]) -> Any:
        number = echo(body)
        if int(number) % every or number in seen:
            return number
        seen.add(number)
        return fresh(fault)

    return script


def fresh(reply: Reply) -> Reply:
    """Returns a copy of a response, because aiohttp can send each one only once."""
    if not isinstance(reply, web.Response):
        return reply
    named = {k: v for k, v in reply.headers.items() if k.lower() == "retry-after"}
    return web.Response(
        body=reply.body, status=reply.status, content_type=reply.content_type, headers=named
    )


@pytest.mark.parametrize(
    "fault",
    [
        failure(429),
        failure(500),
        failure(502),
        failure(503),
        reset,
        truncated,
        web.Response(text="{torn", content_type="application/json"),
        {"choices": None},
    ],
    ids=["429", "500", "502", "503", "reset", "truncated", "torn json", "wrong schema"],
)
async def test_a_transient_fault_costs_one_retry(fault: Reply) -> None:
    async with (
        FakeEndpoint(at_first(fault, every=3)) as server,
        engine(server, max_concurrency=4) as asked,
    ):
        said = await replies(asked, 12)
    assert [one.attempts for one in said] == [2, 1, 1] * 4
    assert len(server.requests) == 12 + 4
    assert server.most <= 4


@pytest.mark.parametrize("fault", [stalled, hanging], ids=["slow body", "accepts and hangs"])
async def test_a_call_to_a_silent_server_is_retried_after_the_time_limit(fault: Reply) -> None:
    async with (
        FakeEndpoint(at_first(fault, every=3)) as server,
        engine(server, max_concurrency=4, timeout_s=1.0) as asked,
    ):
        said = await replies(asked, 9)
    assert all(one.attempts > 1 for one in said[::3])
    assert server.most <= 4


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (reset, "the connection to http://.* broke"),
        (truncated, "the connection to http://.* broke"),
        (hanging, r"did not answer in time \(limits.timeout_s\)"),
        (failure(502, "upstream"), "answered 502.*upstream"),
    ],
    ids=["reset", "truncated", "hangs", "502"],
)
async def test_a_persistent_fault_is_reported_with_its_cause(fault: Reply, says: str) -> None:
    once = replace(HURRIED, attempts=1)
    script = at_first(fault)
    async with FakeEndpoint(script) as server, engine(server, once, timeout_s=0.5) as asked:
        with pytest.raises(EndpointError, match=says) as caught:
            await asked.sample(request(0))
    assert not caught.value.fatal


async def test_patience_is_at_least_the_time_of_all_attempts_of_one_call() -> None:
    begin = asyncio.get_running_loop().time()

    def script(body: dict[str, Any]) -> Any:
        ill = asyncio.get_running_loop().time() - begin < 0.5
        return failure(500) if ill else echo(body)

    persistent = replace(HURRIED, patience_s=0.1, attempts=100)
    async with (
        FakeEndpoint(script) as server,
        engine(server, persistent, timeout_s=60.0) as asked,
    ):
        await replies(asked, 12)


@pytest.mark.parametrize(
    ("header", "asks"),
    [("1", True), (formatdate(253402300000, usegmt=True), True), ("soon", False)],
    ids=["seconds", "for ever", "a word"],
)
async def test_a_requested_pause_is_granted_up_to_the_longest(header: str, asks: bool) -> None:
    arrivals: list[float] = []

    def script(body: dict[str, Any]) -> Any:
        arrivals.append(asyncio.get_running_loop().time())
        if len(arrivals) == 1:
            return failure(429, Retry_After=header)
        return echo(body)

    async with FakeEndpoint(script) as server, engine(server, max_concurrency=1) as asked:
        said = await replies(asked, 3)
    assert sum(one.attempts for one in said) == len(server.requests) == 4
    if asks:  # there must be no request during the longest pause that the policy grants
        assert arrivals[1] - arrivals[0] >= HURRIED.longest_retry_after_s


async def test_concurrency_drops_for_an_overloaded_server_and_no_call_is_lost() -> None:
    served = 0

    async def small(body: dict[str, Any]) -> Any:
        nonlocal served
        if server.under_way > 6:
            return failure(429)
        await asyncio.sleep(0.01)
        served += 1
        return echo(body)

    async with FakeEndpoint(small) as server, engine(server, max_concurrency=64) as asked:
        await replies(asked, 300)
        assert server.most <= 32, "concurrency of an unknown endpoint starts at 32"
        server.most = 0
        await replies(asked, 100)
    assert served == 400
    assert server.most <= 12
    assert len(server.requests) < 1.5 * 400


async def test_calls_pause_during_an_outage_and_resume_after_it() -> None:
    said: list[str] = []
    noticed = asyncio.Event()

    def listen(line: str) -> None:
        said.append(line)
        noticed.set()

    async def script(body: dict[str, Any]) -> str:
        if len(server.requests) == 20:
            await server.refuse()
        return echo(body)

    async with (
        FakeEndpoint(script) as server,
        engine(server, max_concurrency=8, on_event=listen) as asked,
    ):
        calls = asyncio.create_task(replies(asked, 60))
        await asyncio.wait_for(noticed.wait(), 20)
        away = len(server.requests)
        await server.listen()
        await calls
    assert "nothing answers at http://127.0.0.1" in said[0]
    assert "all calls are paused" in said[0]
    assert "recovered after" in said[1]
    assert len(said) == 2
    assert away <= 20 + 8
    assert max(Counter(map(echo, server.requests)).values()) == 2, (
        "only interrupted calls may be repeated"
    )


def rows(run: Path, table: str) -> list[str]:
    return sorted(map(repr, read_parts(run, table).to_pylist()))


def hurry(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    made = replace(HURRIED, **changes)
    monkeypatch.setattr("branchwise.engines.endpoint.openai.RetryPolicy", partial(replace, made))


class FaultyPolicy:
    """Policy that answers the first request of 60 calls with one of eight faults, in turn."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self.met = 0

    def __call__(self, body: dict[str, Any]) -> Any:
        seed = body["seed"]
        self.seen[seed] += 1
        if self.seen[seed] > 1 or self.met >= 60:
            return policy(body)
        faults = [
            failure(429, f"slow down, {CANARY}", Retry_After="1"),
            failure(500, f"no, {CANARY}"),
            failure(502),
            failure(503, Retry_After=formatdate(time.time() + 60, usegmt=True)),
            reset,
            truncated,
            {"error": CANARY},
            web.Response(text="{torn", content_type="application/json"),
        ]
        self.met += 1
        return faults[self.met % len(faults)]


def test_a_run_with_every_kind_of_fault_has_the_rows_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hurry(monkeypatch, longest_retry_after_s=0.02)
    peace, war, faulty = tmp_path / "peace" / "run", tmp_path / "war" / "run", FaultyPolicy()
    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("annotate", config, peace) == 0
        calls = len(endpoint.requests)
        endpoint.script = faulty
        assert branchwise("annotate", config, war) == 0
        assert faulty.met == 60
        assert len(endpoint.requests) == 2 * calls + faulty.met
    assert question_ids(war, "failures") == set()
    for table in ("pairs", "trees"):
        assert rows(war, table) == rows(peace, table)
    with Ledger(war / "ledger.sqlite") as ledger:
        assert ledger.totals().calls == calls
    said = capsys.readouterr().out
    assert "canary" not in said + "".join(
        path.read_bytes().decode(errors="ignore") for path in war.rglob("*") if path.is_file()
    )


def test_a_run_ends_with_advice_when_its_endpoint_dies_and_resumes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hurry(monkeypatch, patience_s=1.0)
    whole, cut = tmp_path / "whole" / "run", tmp_path / "cut" / "run"

    async def dying(body: dict[str, Any]) -> str:
        if len(endpoint.requests) == calls + calls // 2:
            await endpoint.refuse()
        return policy(body)

    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("annotate", config, whole) == 0
        calls = len(endpoint.requests)
        endpoint.script = dying
        assert branchwise("annotate", config, cut, "--set", "limits.timeout_s=1") == 1
        assert "rerun the same command" in " ".join(capsys.readouterr().out.split())
        with Ledger(cut / "ledger.sqlite") as ledger:
            stored = ledger.totals().calls
        failures = load_manifest(cut).rows("failures")
        assert failures == 0, "an outage must not count as a failed question"
        assert 0 < stored < calls
        endpoint.script = policy
        before = len(endpoint.requests)
        asyncio.run_coroutine_threadsafe(endpoint.listen(), endpoint.loop).result()
        assert branchwise("annotate", config, cut) == 0
        assert len(endpoint.requests) - before == calls - stored
    assert rows(cut, "pairs") == rows(whole, "pairs")
    assert rows(cut, "trees") == rows(whole, "trees")
    assert verify_manifest(cut) == []
