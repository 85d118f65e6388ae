"""Handles stop signals: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a stage."""


def handled_stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the stop signals that this process handles (`nohup` makes it ignore SIGHUP)."""
    return tuple(
        one
        for one in STOP_SIGNALS
        if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN
    )


@contextmanager
def on_stop_signal(take: Callable[[int], object]) -> Iterator[None]:
    """Calls `take` for every stop signal until the block ends."""
    terminals = [stream for stream in (0, 1, 2) if os.isatty(stream)]

    def told(signum: int, frame: object) -> None:
        _detach_closed_terminals(terminals)
        take(signum)

    before = {one: signal.signal(one, told) for one in handled_stop_signals()}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _detach_closed_terminals(terminals: list[int]) -> None:
    """Redirects streams of a closed terminal, or printing would fail."""
    for stream in terminals:
        if not os.isatty(stream):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, stream)
            os.close(nothing)
