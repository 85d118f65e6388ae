"""The ledgered engine: every draw is a call of its own, made once and stored before use."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.base.concurrent_map import map_concurrently
from branchwise.base.errors import BudgetExceeded, EndpointError, StorageError
from branchwise.engines.ledgered import LedgeredEngine
from branchwise.engines.sampling import (
    CallIdentity,
    Capabilities,
    Completion,
    SampleRequest,
    Sampling,
    Usage,
)
from branchwise.engines.settings import Price
from branchwise.storage.ledger import Ledger
from branchwise.types import Message

REPOSITORY = Path(__file__).resolve().parents[2]

REQUEST = SampleRequest(
    messages=(Message("system", "Answer."), Message("user", "Capital of France?")),
    sampling=Sampling(),
    identity=CallIdentity("policy", "q1", "tree/0"),
)
DRAWS = [replace(REQUEST, identity=replace(REQUEST.identity, draw=draw)) for draw in range(3)]


Tokens = tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[float, ...] | None]


def tokens_of(completion: Completion) -> Tokens:
    return completion.prompt_ids, completion.token_ids, completion.logprobs


class CountingEngine:
    """Answers with the number of the call; waits for `gate` and raises `error` if they are set."""

    model = "counting"
    digest = "digest"
    capabilities = Capabilities(token_ids=True)

    def __init__(self, text: Callable[[int], str] = str) -> None:
        self.asked: list[SampleRequest] = []
        self.text = text
        self.gate: asyncio.Event | None = None
        self.reached: asyncio.Queue[int] = asyncio.Queue()
        self.error: Exception | None = None
        self.tokens: Tokens = ((5, 6), (1, 2), (-0.1, -0.2))

    async def sample(self, request: SampleRequest) -> Completion:
        self.asked.append(request)
        number = len(self.asked)
        self.reached.put_nowait(number)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        usage = Usage(100, 40, 10)
        return Completion(self.text(number), "stop", usage, "served", "</answer>", *self.tokens)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None


async def test_draws_are_separate_calls_and_a_replay_makes_none(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        engine = CountingEngine(lambda number: f"cut {number} \ud83d")
        ledgered = LedgeredEngine(engine, ledger, Price(input=1, cached=0.5, output=2))
        first = await asyncio.gather(*map(ledgered.sample, DRAWS))
        assert sorted(c.text for c in first) == ["cut 1 \ufffd", "cut 2 \ufffd", "cut 3 \ufffd"]
        assert [r.identity.draw for r in engine.asked] == [0, 1, 2]
        assert ledger.totals().cost_usd == pytest.approx(3 * (60 + 20 + 20) / 1e6)
        assert {tokens_of(one) for one in first} == {(None, None, None)}, (
            "no token ids were requested"
        )
    with Ledger(tmp_path / "l") as ledger:
        silent = CountingEngine()
        resumed = LedgeredEngine(silent, ledger)
        assert await asyncio.gather(*map(resumed.sample, DRAWS)) == first
        assert silent.asked == []
        # Another node, another prefix or another engine makes a new call.
        other_place = replace(REQUEST, identity=replace(REQUEST.identity, path="tree/1"))
        other_prompt = replace(REQUEST, prefix=("<answer>",))
        assert (await resumed.sample(other_place)).text == "1"
        assert (await resumed.sample(other_prompt)).text == "2"
        silent.digest = "trained"
        trained = LedgeredEngine(silent, ledger)
        assert (await trained.sample(REQUEST)).text == "3"
        assert ledger.totals().unpriced == 3
        assert len(silent.asked) == 3


IDS = st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple)
LOGPROBS = st.lists(st.floats(-9999, 0), max_size=9).map(tuple)


@settings(max_examples=25)
@given(prompt=IDS, ids=IDS, logprobs=st.none() | LOGPROBS)
def test_token_ids_are_equal_when_replayed(
    prompt: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...] | None
) -> None:
    asked = replace(REQUEST, tokens=True)

    async def drawn(path: Path) -> tuple[Completion, Completion, int]:
        engine = CountingEngine()
        engine.tokens = (prompt, ids, logprobs)
        with Ledger(path) as ledger:
            fresh = await LedgeredEngine(engine, ledger).sample(asked)
        with Ledger(path) as ledger:
            return fresh, await LedgeredEngine(engine, ledger).sample(asked), len(engine.asked)

    with TemporaryDirectory() as folder:
        fresh, replayed, calls = asyncio.run(drawn(Path(folder) / "l"))
    assert (fresh, calls) == (replayed, 1)
    assert (fresh.prompt_ids, fresh.token_ids) == (prompt, ids)
    assert fresh.logprobs == (logprobs and pytest.approx(logprobs, rel=1e-6, abs=1e-37))


async def test_a_replay_without_stored_token_ids_raises_storage_error(tmp_path: Path) -> None:
    asked = replace(REQUEST, tokens=True)
    with Ledger(tmp_path / "l") as ledger:
        ledgered = LedgeredEngine(CountingEngine(), ledger)
        plain, missed = await asyncio.gather(
            ledgered.sample(REQUEST), ledgered.sample(asked), return_exceptions=True
        )
        assert isinstance(plain, Completion)
        assert isinstance(missed, StorageError), (
            "it shares the call of the request without token ids"
        )
        with pytest.raises(StorageError, match=r"'tree/0' of question 'q1' .* without token ids"):
            await ledgered.sample(asked)
        assert await ledgered.sample(REQUEST) == plain
        assert ledger.totals().calls == 1


async def test_a_reply_is_stored_before_it_is_returned(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        engine = CountingEngine()
        ledgered = LedgeredEngine(engine, ledger)

        async def stored_when_seen(request: SampleRequest) -> int:
            await ledgered.sample(request)
            return ledger.totals().calls

        seen = await asyncio.gather(*map(stored_when_seen, DRAWS[:2]))
        assert min(seen) >= 1
        assert ledger.totals().calls == 2


async def test_equal_concurrent_calls_share_one_request(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        engine = CountingEngine()
        engine.gate = asyncio.Event()
        ledgered = LedgeredEngine(engine, ledger)
        asking = [asyncio.create_task(ledgered.sample(REQUEST)) for _ in range(4)]
        await engine.reached.get()
        asking[0].cancel()  # the one whose request is sent
        engine.gate.set()
        replies = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(replies[0], asyncio.CancelledError)
        assert replies[1] == replies[2] == replies[3]
        assert len(engine.asked) == 1


async def test_a_call_of_a_cancelled_question_is_stored_before_the_engine_closes(
    tmp_path: Path,
) -> None:
    with Ledger(tmp_path / "l") as ledger:
        engine = CountingEngine()
        engine.gate = asyncio.Event()
        async with LedgeredEngine(engine, ledger) as ledgered:
            asking = asyncio.create_task(ledgered.sample(REQUEST))
            await engine.reached.get()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            asyncio.get_running_loop().call_soon(engine.gate.set)
        assert ledger.totals().calls == 1


async def test_a_fatal_error_of_one_question_loses_no_call_of_the_others(tmp_path: Path) -> None:
    class OneIsRefused(CountingEngine):
        async def sample(self, request: SampleRequest) -> Completion:
            if request.identity.draw == 0:
                raise EndpointError("402", fatal=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return await super().sample(request)

    with Ledger(tmp_path / "l") as ledger:
        with pytest.raises(EndpointError):
            async with LedgeredEngine(OneIsRefused(), ledger) as ledgered:
                [one async for one in map_concurrently(DRAWS, ledgered.sample, len(DRAWS))]
        assert ledger.totals().calls == len(DRAWS) - 1


async def test_a_failed_call_is_recorded_and_repeated(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        engine = CountingEngine()
        engine.error = EndpointError("it broke", attempts=4)
        ledgered = LedgeredEngine(engine, ledger)
        results = await asyncio.gather(
            ledgered.sample(REQUEST), ledgered.sample(REQUEST), return_exceptions=True
        )
        assert [str(r) for r in results] == ["it broke"] * 2
        assert len(engine.asked) == 1
        stored = sqlite3.connect(tmp_path / "l").execute("SELECT error, attempts FROM calls")
        assert stored.fetchall() == [("it broke", 4)]
        engine.error = None
        assert (await ledgered.sample(REQUEST)).text == "2"
        assert ledger.totals().calls == 1


async def test_a_spent_budget_stops_new_calls_but_not_replays(tmp_path: Path) -> None:
    def spent() -> None:
        if ledger.totals().calls:
            raise BudgetExceeded("limits.max_tokens 10 reached")

    with Ledger(tmp_path / "l") as ledger:
        engine = CountingEngine()
        ledgered = LedgeredEngine(engine, ledger, before_call=spent)
        paid = await ledgered.sample(REQUEST)
        with pytest.raises(BudgetExceeded):
            await ledgered.sample(DRAWS[1])
        assert await ledgered.sample(REQUEST) == paid
        assert len(engine.asked) == ledger.totals().calls == 1


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from branchwise.engines.ledgered import LedgeredEngine
from branchwise.storage.ledger import Ledger
from test_ledgered import REQUEST, CountingEngine

async def main():
    ledger = Ledger(Path(sys.argv[1]))
    await LedgeredEngine(CountingEngine(), ledger).sample(REQUEST)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_run_killed_after_its_first_call_does_not_repeat_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    folders = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(path)],
        env={**os.environ, "PYTHONPATH": folders},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        engine = CountingEngine()
        completion = await LedgeredEngine(engine, ledger).sample(REQUEST)
        assert (completion.text, engine.asked) == ("1", [])
