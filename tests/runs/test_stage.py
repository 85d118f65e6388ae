"""The gate of a stage answers a stop signal at once."""

import asyncio
import os
import signal

import pytest

from runs.recipe import LimitSettings
from runs.stage import INTERRUPTED, STOPPING, Gate


async def test_the_first_signal_is_answered_and_the_second_aborts() -> None:
    said: list[str] = []
    gate = Gate(LimitSettings(), log=said.append)
    with gate.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)  # the loop takes the message
        assert said == [STOPPING]
        assert list(gate.admit(["question"])) == []
        assert gate.exit_code == INTERRUPTED
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert said == [STOPPING]


def test_a_signal_is_answered_outside_a_loop() -> None:
    said: list[str] = []
    with Gate(LimitSettings(), log=said.append).listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert said == [STOPPING]
