"""The gate of a stage: its reaction to one, two and three stop signals."""

import asyncio
import os
import signal

import pytest

from branchwise.runs.recipe import LimitSettings
from branchwise.runs.stage import INTERRUPTED, STOPPING, Gate


def test_the_first_signal_closes_the_gate_and_the_second_aborts() -> None:
    said: list[str] = []
    gate = Gate(LimitSettings(), log=said.append)

    async def work() -> None:
        with gate.listening():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)  # lets the event loop log the message
            assert said == [STOPPING]
            assert list(gate.admit(["question"])) == []
            assert gate.exit_code == INTERRUPTED
            os.kill(os.getpid(), signal.SIGTERM)
            said.append("a callback is not cut off")
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert said == [STOPPING, "a callback is not cut off"]


def test_a_third_signal_interrupts_a_callback_that_hangs() -> None:
    sent: list[int] = []

    async def work() -> None:
        with Gate(LimitSettings()).listening():
            for number in (1, 2, 3):
                os.kill(os.getpid(), signal.SIGTERM)
                sent.append(number)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert sent == [1, 2]


def test_a_signal_without_an_event_loop_is_logged_at_once() -> None:
    said: list[str] = []
    with Gate(LimitSettings(), log=said.append).listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert said == [STOPPING]
