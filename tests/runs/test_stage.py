"""The gate of a stage: its reaction to stop signals, also in other threads than the main one."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from branchwise.runs.recipe import LimitSettings
from branchwise.runs.stage import INTERRUPTED, STOPPING, Gate, call_outside_loop, on_stop_signal


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


def test_a_thread_without_signals_leaves_their_handlers_unchanged() -> None:
    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with on_stop_signal(lambda _: None):
            assert signal.getsignal(signal.SIGINT) is before
        ended.append(True)

    ended: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yields a new loop; unlike that of `asyncio.run`, it does not handle signals."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def test_a_call_in_a_running_loop_has_a_loop_of_its_own() -> None:
    async def inner() -> int:
        return threading.get_ident()

    async def cell() -> int:
        return call_outside_loop(lambda: asyncio.run(inner()))

    assert asyncio.run(cell()) != threading.get_ident()
    assert call_outside_loop(lambda: asyncio.run(inner())) == threading.get_ident()


def test_interrupts_in_a_running_loop_close_the_gate_and_then_abort_the_call() -> None:
    said: list[str] = []
    logged, stop = threading.Event(), threading.Event()

    def log(text: str) -> None:
        said.append(text)
        logged.set()

    gate = Gate(LimitSettings(), log=log)

    def work() -> None:
        with gate.listening():
            os.kill(os.getpid(), signal.SIGINT)
            logged.wait()
            assert gate.closed()
            os.kill(os.getpid(), signal.SIGINT)
            while not stop.is_set():  # the interrupt ends this loop
                pass

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            call_outside_loop(work)

    with running_loop() as loop:
        loop.run_until_complete(cell())
    assert said == [STOPPING]


def test_an_interrupt_aborts_a_call_that_listens_to_no_signal() -> None:
    stop = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not stop.is_set():  # the interrupt ends this loop
            pass

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            call_outside_loop(work)

    with running_loop() as loop:
        loop.run_until_complete(cell())
