"""Runs a simulated endpoint in its own process and reads its log."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
EDGE = 0.05
"""Share of the calls that the occupancy leaves out at each end."""


@dataclass(frozen=True)
class Occupancy:
    """The endpoint's own log.

    Attributes:
        distinct: Number of different requests. If it is below `requests`, work was paid for twice.
        came, began, ended: Times of all calls in seconds, each in ascending order.
    """

    slots: int
    distinct: int
    came: list[float]
    began: list[float]
    ended: list[float]

    @property
    def requests(self) -> int:
        return len(self.came)

    def busy_slot_s(self, start: float, end: float) -> float:
        """Returns the slot-seconds in use between two times."""
        began = np.clip(self.began, start, end)
        ended = np.clip(self.ended, start, end)
        return float(np.sum(end - began) - np.sum(end - ended))

    def share_busy(self, edge: float = EDGE) -> float:
        """Returns the share of slot-time in use, without the first and the last calls (`edge`)."""
        left_out = int(edge * len(self.ended))
        start, end = self.began[left_out], self.ended[-1 - left_out]
        return self.busy_slot_s(start, end) / (self.slots * (end - start))


@dataclass(frozen=True)
class Simulated:
    """A running endpoint."""

    base_url: str
    pid: int

    def occupancy(self) -> Occupancy:
        """Returns the endpoint's log so far."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.base_url.removesuffix("/v1") + "/occupancy", timeout=60) as log:
            return Occupancy(**json.load(log))


@contextmanager
def serving(*arguments: str) -> Iterator[Simulated]:
    """Runs the endpoint in its own process until the block ends."""
    command = [sys.executable, "-m", "benchmarks.simulated_endpoint", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        try:
            assert child.stdout is not None
            yield Simulated(child.stdout.readline().strip(), child.pid)
        finally:
            child.terminate()
