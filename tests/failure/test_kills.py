"""kill -9 anywhere: what was stored is not paid for again, and the rows are the same."""

import math
import os
import random
import select
import signal
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from durable import World, stored_seeds
from seams import Seam
from stages import CHECK_TIMEOUT_S
from tiny_dataset import policy

pytestmark = pytest.mark.failure

SEAMS = [
    Seam("half", "*/.config.yaml-*"),
    Seam("rename", "*/config.yaml"),
    Seam("rename", "*/provenance.json"),
    Seam("rename", "*/provenance.json", "after"),
    Seam("sql", "PRAGMA user_version = *"),
    Seam("rename", "*/questions.parquet", "after"),
    Seam("rename", "*/manifest.json", "after"),
    Seam("sql", "COMMIT", "before", 10),
    Seam("sql", "COMMIT", "after", 10),
    Seam("put", nth=20),
    Seam("put", when="after", nth=20),
    Seam("half", "trees/*"),
    Seam("rename", "trees/*", nth=2),
    Seam("rename", "trees/*", "after", 2),
    Seam("rename", "pairs/*", nth=2),
    Seam("rename", "pairs/*", "after", 2),
    Seam("half", "*/.manifest.json-*", nth=3),
    Seam("rename", "*/manifest.json", nth=3),
    Seam("rename", "*/manifest.json", "after", 3),
    Seam("questions", when="after", nth=2),
    Seam("half", "*/.README.md-*"),
    Seam("rename", "*/README.md"),
    Seam("close"),
    Seam("close", when="after"),
]
"""Before and after every write that a run is made of."""


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_a_kill_at_a_seam(seam: Seam, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = world.annotate(run, seam=seam)
    assert killed.code == -signal.SIGKILL, killed.said
    world.finish(run)


@dataclass
class Deadly:
    """The endpoint's script: when it has `left` requests left, the process dies.

    Attributes:
        workers: what can be waited for: the processes that the one killed had begun.
    """

    left: int
    pid: Future[int] = field(default_factory=Future)
    workers: list[int] = field(default_factory=list)

    def __call__(self, request: dict[str, Any]) -> str:
        self.left -= 1
        if self.left == 0:
            pid = self.pid.result()
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            self.workers += [os.pidfd_open(int(child)) for child in children]
            os.kill(pid, signal.SIGKILL)
        return policy(request)


def killed_at(request: int, world: World, run: Path, *more: str) -> None:
    """Annotate until the endpoint receives a request, and nobody is left."""
    deadly = Deadly(request)
    with world.scripted(deadly):
        running = world.start(run, *more)
        deadly.pid.set_result(running.pid)
        assert running.ended().code == -signal.SIGKILL
        for worker in deadly.workers:
            assert select.select([worker], [], [], CHECK_TIMEOUT_S)[0], "it ends with its parent"
            os.close(worker)


def moments(number: int, seed: int) -> list[int]:
    """Random moments, in percent of the calls of a whole run."""
    return random.Random(seed).sample(range(1, 100), number)


def request_at(moment: int, world: World) -> int:
    return math.ceil(moment / 100 * len(stored_seeds(world.whole)))


@pytest.mark.parametrize("moment", moments(20, seed=3))
def test_a_kill_when_a_request_arrives(moment: int, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed_at(request_at(moment, world), world, run)
    world.finish(run)


@pytest.mark.parametrize(
    "moment", [40, *(pytest.param(m, marks=pytest.mark.long_failure) for m in moments(5, seed=4))]
)
def test_a_kill_leaves_no_worker(moment: int, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed_at(request_at(moment, world), world, run, "--workers", "2")
    world.finish(run)


@pytest.mark.long_failure
def test_kills_without_end(world: World, tmp_path: Path) -> None:
    """A run that never gets far is there in the end."""
    run, held = tmp_path / "run", set[int]()
    for moment in moments(20, seed=5):
        before = len(world.seeds)
        missing = stored_seeds(world.whole) - held
        killed_at(math.ceil(moment / 1000 * len(missing)), world, run)
        assert not held & set(world.seeds[before:])
        assert held <= stored_seeds(run)
        held = stored_seeds(run)
    world.finish(run)
