"""kill -9 at any moment: stored calls are not repeated, and the rows stay the same."""

import math
import os
import random
import signal
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from durable import World, stored_seeds
from seams import Seam
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
    Seam("half", "*/.README.md-*"),
    Seam("rename", "*/README.md"),
    Seam("close"),
    Seam("close", when="after"),
]
"""Before and after every write of a run."""


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_a_run_killed_before_or_after_a_write_resumes(
    seam: Seam, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed = world.annotate(run, seam=seam)
    assert killed.code == -signal.SIGKILL, killed.said
    world.finish(run)


@pytest.mark.parametrize(
    "seam",
    [
        Seam("rename", "*/questions.parquet"),
        Seam("rename", "*/questions.parquet", "after"),
        Seam("rename", "*/manifest.json"),
        Seam("rename", "*/manifest.json", nth=2),
    ],
    ids=str,
)
def test_a_run_killed_while_it_is_extended_resumes(
    seam: Seam, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert world.annotate(run, "--limit", 2).code == 0
    killed = world.annotate(run, seam=seam)
    assert killed.code == -signal.SIGKILL, killed.said
    world.finish(run)


@dataclass
class KillingPolicy:
    """Endpoint script that kills the process `pid` at the request number `left`."""

    left: int
    pid: Future[int] = field(default_factory=Future)

    def __call__(self, request: dict[str, Any]) -> str:
        self.left -= 1
        if self.left == 0:
            os.kill(self.pid.result(), signal.SIGKILL)
        return policy(request)


def kill_at(request: int, world: World, run: Path, *more: str) -> None:
    """Annotates until the endpoint receives a request."""
    killing = KillingPolicy(request)
    with world.scripted(killing):
        running = world.start(run, *more)
        killing.pid.set_result(running.pid)
        assert running.ended().code == -signal.SIGKILL


def moments(number: int, seed: int) -> list[int]:
    """Returns random moments, in percent of the calls of a whole run."""
    return random.Random(seed).sample(range(1, 100), number)


def request_at(moment: int, world: World) -> int:
    return math.ceil(moment / 100 * len(stored_seeds(world.whole)))


MOMENTS = moments(20, seed=3)


@pytest.mark.parametrize(
    "moment", [*MOMENTS[:8], *(pytest.param(m, marks=pytest.mark.long) for m in MOMENTS[8:])]
)
def test_a_run_killed_when_a_request_arrives_resumes(
    moment: int, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    kill_at(request_at(moment, world), world, run)
    world.finish(run)


@pytest.mark.long
def test_a_run_that_is_killed_20_times_still_finishes(world: World, tmp_path: Path) -> None:
    """Each attempt makes only part of the missing calls."""
    run, held = tmp_path / "run", set[int]()
    for moment in moments(20, seed=5):
        before = len(world.seeds)
        missing = stored_seeds(world.whole) - held
        kill_at(math.ceil(moment / 1000 * len(missing)), world, run)
        assert not held & set(world.seeds[before:])
        assert held <= stored_seeds(run)
        held = stored_seeds(run)
    world.finish(run)
