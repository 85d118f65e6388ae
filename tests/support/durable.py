"""Compares interrupted and resumed runs with an undisturbed run at the same endpoint."""

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

from branchwise.engines.sampling import derived_seed
from branchwise.storage.manifest import load_manifest, verify_manifest
from branchwise.storage.parts import read_parts

SMALL_PARTS = {"branchwise.pipelines.annotate.commit.QUESTIONS_A_PART": 2}
"""Makes six questions be committed in three parts."""


@dataclass
class World:
    """The tiny dataset with one endpoint; without an identity, its address is part of every key.

    Attributes:
        endpoint: Endpoint whose `script` may be replaced for a while (see `scripted`).
        recipe: Recipe for all runs of the world.
        stages: Process that runs the stages.
        whole: Folder of an undisturbed run.
    """

    endpoint: FakeEndpoint
    recipe: Path
    stages: Stages
    whole: Path
    _begun: int = 0

    def start(self, run: Path, *more: object, **how: Any) -> Running:
        """Starts an annotation; `how` holds keyword arguments of `Stages.start`."""
        self.begin()
        how = {"constants": SMALL_PARTS, **how}
        return self.stages.start(
            "annotate", "--config", self.recipe, "--run", run, *more, **how
        ).go()

    def begin(self) -> None:
        """Marks the start of a new attempt in the list of requests."""
        self._begun = len(self.endpoint.requests)

    def annotate(self, run: Path, *more: object, **how: Any) -> Ended:
        """Annotates and waits for the end."""
        return self.start(run, *more, **how).ended()

    @contextmanager
    def scripted(self, script: Any) -> Iterator[None]:
        """Replaces the endpoint's script until the block ends."""
        before, self.endpoint.script = self.endpoint.script, script
        try:
            yield
        finally:
            self.endpoint.script = before

    @property
    def seeds(self) -> list[int]:
        """Seeds of all requests that the endpoint received; each identifies a call."""
        return [request["seed"] for request in self.endpoint.requests]

    def finish(self, run: Path, *more: object) -> None:
        """Resumes an interrupted run and checks the guarantees of durability.

        The endpoint's list of requests shows that no stored call is repeated.
        """
        self.endpoint.settle()
        held, lately = stored_seeds(run), self.seeds[self._begun :]
        before = len(self.seeds)
        assert not run.exists() or verify_manifest(run) == []
        resumed = self.annotate(run, *more)
        assert resumed.code == 0, resumed.said
        fresh = self.seeds[before:]
        assert len(fresh) == len(set(fresh)), "a call was made twice"
        assert not set(fresh) & held, "a stored call was repeated"
        assert len(set(fresh) & set(lately)) <= 6, "at most one call per question may be repeated"
        assert stored_seeds(run) == held | set(fresh) == stored_seeds(self.whole)
        assert rows_of(run, "pairs") == rows_of(self.whole, "pairs")
        assert rows_of(run, "trees") == rows_of(self.whole, "trees")
        assert verify_manifest(run) == []
        assert load_manifest(run).rows("failures") == 0
        assert (run / "README.md").is_file(), "a finished run must have its card"


@contextmanager
def opened_world(folder: Path, stages: Stages, **changes: Any) -> Iterator[World]:
    """Yields a world with its undisturbed run; `changes` replace blocks of the recipe."""
    with serving(policy) as endpoint:
        blocks = {"mcts": {"iterations": 8, "max_children": 3}, **changes}
        config = recipe(folder, endpoint.base_url, **blocks)
        world = World(endpoint, config, stages, folder / "whole" / "run")
        done = world.annotate(world.whole)
        assert done.code == 0, done.said
        assert rows_of(world.whole, "pairs"), "the tiny policy must give pairs"
        yield world


def rows_of(run: Path, table: str) -> list[str]:
    """Returns all committed rows as text, sorted, so regardless of their grouping into parts."""
    return sorted(map(repr, read_parts(run, table).to_pylist()))


def stored_seeds(run: Path) -> set[int]:
    """Returns the seeds of the replies in a run's ledger."""
    return {derived_seed(key) for key in stored_keys(run)}


def stored_keys(run: Path) -> set[str]:
    """Returns the keys of the replies in a run's ledger, read from a copy.

    Opening the ledger itself would recover it, which the resuming process has to do.
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
    """Endpoint script that answers the first `free` requests and keeps the others waiting.

    Attributes:
        full: Event that is set once `full_at` requests wait.
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
        """Answers waiting requests and all later ones."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._open.set)
