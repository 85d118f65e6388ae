"""A run that is interrupted and resumed, and the same run left in peace, at one endpoint."""

import asyncio
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_endpoint import FakeEndpoint
from loopback import serving
from stages import Ended, Running, Stages
from tiny_dataset import policy, recipe

from engines.sampling import derived_seed
from storage.manifest import load_manifest, verify_manifest
from storage.parts import read_parts

SMALL_PARTS = {"runs.annotation.commit.QUESTIONS_A_PART": 2}
"""So that six questions are committed in three parts."""


@dataclass
class World:
    """The little world behind one endpoint, whose address is part of what calls are known by.

    Attributes:
        endpoint: its `script` may be changed for a while (see `scripted`).
        recipe: for all runs of the world.
        whole: a run that nothing befell.
    """

    endpoint: FakeEndpoint
    recipe: Path
    stages: Stages
    whole: Path
    _begun: int = 0

    def start(self, run: Path, *more: object, **how: Any) -> Running:
        """Begin an annotation; `how` as in `Stages.start`."""
        self.begin()
        how = {"constants": SMALL_PARTS, **how}
        return self.stages.start(
            "annotate", "--config", self.recipe, "--run", run, *more, **how
        ).go()

    def begin(self) -> None:
        """From now on, requests are those of a new attempt."""
        self._begun = len(self.endpoint.requests)

    def annotate(self, run: Path, *more: object, **how: Any) -> Ended:
        """Annotate, to the end."""
        return self.start(run, *more, **how).ended()

    @contextmanager
    def scripted(self, script: Any) -> Iterator[None]:
        """The endpoint, answering otherwise."""
        before, self.endpoint.script = self.endpoint.script, script
        try:
            yield
        finally:
            self.endpoint.script = before

    @property
    def seeds(self) -> list[int]:
        """The seed of every request that the endpoint received; it stands for the call's key."""
        return [request["seed"] for request in self.endpoint.requests]

    def finish(self, run: Path, *more: object) -> None:
        """Resume an interrupted run, and check the promises of durability.

        The endpoint's own log is the proof: what the ledger held is not asked for again.
        """
        held, lately = stored_seeds(run), self.seeds[self._begun :]
        before = len(self.seeds)
        assert not run.exists() or verify_manifest(run) == []
        resumed = self.annotate(run, *more)
        assert resumed.code == 0, resumed.said
        fresh = self.seeds[before:]
        assert len(fresh) == len(set(fresh)), "a call was made twice"
        assert not set(fresh) & held, "a stored reply was asked for again"
        assert len(set(fresh) & set(lately)) <= 6, "a question has one call under way at a time"
        assert stored_seeds(run) == held | set(fresh) == stored_seeds(self.whole)
        assert rows_of(run, "pairs") == rows_of(self.whole, "pairs")
        assert rows_of(run, "trees") == rows_of(self.whole, "trees")
        assert verify_manifest(run) == []
        assert load_manifest(run).rows("failures") == 0
        assert (run / "README.md").is_file(), "a finished run has its card"


@contextmanager
def opened_world(folder: Path, stages: Stages, **changes: Any) -> Iterator[World]:
    """The world, with its run in peace; `changes` replace blocks of the recipe."""
    with serving(policy) as endpoint:
        blocks = {"mcts": {"iterations": 8, "max_children": 3}, **changes}
        config = recipe(folder, endpoint.base_url, **blocks)
        world = World(endpoint, config, stages, folder / "whole" / "run")
        done = world.annotate(world.whole)
        assert done.code == 0, done.said
        assert rows_of(world.whole, "pairs"), "a policy that is sometimes right gives pairs"
        yield world


def rows_of(run: Path, table: str) -> list[str]:
    """Every column of every committed row, in an order that no grouping into parts decides."""
    return sorted(map(repr, read_parts(run, table).to_pylist()))


def stored_seeds(run: Path) -> set[int]:
    """Seeds of the replies that a ledger holds."""
    return {derived_seed(key) for key in stored_keys(run)}


def stored_keys(run: Path) -> set[str]:
    """Keys of the replies that a ledger holds, read from a copy.

    Opening the ledger itself would take its recovery away from the process that resumes.
    """
    if not (run / "ledger.sqlite").exists():
        return set()
    with tempfile.TemporaryDirectory() as copy:
        for name in ("ledger.sqlite", "ledger.sqlite-wal"):
            if (run / name).exists():
                shutil.copy(run / name, copy)
        with closing(sqlite3.connect(Path(copy) / "ledger.sqlite")) as ledger:
            if not ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchall():
                return set()
            keys = ledger.execute("SELECT key FROM calls WHERE error IS NULL").fetchall()
    return {key for (key,) in keys}


class Held:
    """An endpoint's script that answers `free` requests and keeps the others waiting.

    Attributes:
        full: set once `full_at` requests wait.
    """

    def __init__(self, free: int, full_at: int) -> None:
        self.full = threading.Event()
        self._free = free
        self._missing = full_at
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = asyncio.Event()

    async def __call__(self, request: dict[str, Any]) -> str:
        self._loop = asyncio.get_running_loop()
        self._free -= 1
        if self._free < 0:
            self._missing -= 1
            if self._missing == 0:
                self.full.set()
            await self._open.wait()
        return policy(request)

    def release(self) -> None:
        """Answer those that wait, and all that come."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._open.set)
