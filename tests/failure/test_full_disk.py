"""A disk without room: the kernel itself refuses, and says so in the middle of a run."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from durable import World, stored_seeds
from seams import BALLAST, Seam
from stages import Ended

from storage.parts import question_ids

pytestmark = pytest.mark.failure

FULL = [
    Seam("put", nth=20),
    Seam("write", "trees/*", nth=2),
    Seam("write", "pairs/*", nth=2),
    Seam("write", "*/.manifest.json-*", nth=3),
    Seam("write", "*/.config.yaml-*"),
]
"""When the last room goes: before the ledger, a part, the manifest, the recipe is written."""
CARD = Seam("write", "*/.README.md-*")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk; the limit on files is tested everywhere")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("seam", [*FULL, CARD], ids=str)
def test_a_full_disk(seam: Seam, world: World, small_disk: Path) -> None:
    run = small_disk / "run"
    stopped = world.annotate(run, seam=filling(seam, small_disk))
    refused(stopped, run)
    kept = committed(run)
    refused(world.annotate(run), run)  # still no room
    assert committed(run) == kept, "nothing committed is lost"
    (small_disk / BALLAST).unlink()
    world.finish(run)


@pytest.mark.parametrize("seam", FULL, ids=str)
def test_a_limit_on_files(seam: Seam, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused(world.annotate(run, seam=replace(seam, then="shrink")), run)
    world.finish(run)


def test_a_log_without_room(world: World, small_disk: Path, tmp_path: Path) -> None:
    """Nobody can read what the run says, which is no reason to lose anything."""
    run, log = tmp_path / "run", small_disk / "log.txt"
    assert world.annotate(run, seam=filling(FULL[0], small_disk), output=log).code in (0, 1)
    world.finish(run)
    nowhere = world.annotate(tmp_path / "never", output=Path("/dev/full"))
    assert nowhere.code == 1


def filling(seam: Seam, disk: Path) -> Seam:
    return replace(seam, then="fill", folder=str(disk))


def committed(run: Path) -> tuple[set[str], set[int]]:
    """Questions of the manifest's parts, and replies of the ledger."""
    return question_ids(run, "trees"), stored_seeds(run)


def refused(ended: Ended, run: Path) -> None:
    """The message names what could not be written and what to do, without a traceback."""
    assert ended.code == 1, ended.said
    assert re.search(rf"(cannot write|cannot create).* {run}/\w", ended.said), ended.said
    assert "Traceback" not in ended.said
