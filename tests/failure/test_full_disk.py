"""Full disks: the kernel refuses a write in the middle of a run."""

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

from branchwise.storage.parts import question_ids

pytestmark = pytest.mark.failure

FULL = [
    Seam("put", nth=20),
    Seam("write", "trees/*", nth=2),
    Seam("write", "pairs/*", nth=2),
    Seam("write", "*/.manifest.json-*", nth=3),
    Seam("write", "*/.config.yaml-*"),
]
"""When the disk fills up: before the ledger, a part, the manifest or the recipe is written."""
CARD = Seam("write", "*/.README.md-*")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 4 MB."""
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
def test_a_full_disk_stops_the_run_which_resumes_when_there_is_room(
    seam: Seam, world: World, small_disk: Path
) -> None:
    run = small_disk / "run"
    stopped = world.annotate(run, seam=filling(seam, small_disk))
    assert_refused(stopped, run)
    kept = committed(run)
    assert_refused(world.annotate(run), run)  # the disk is still full
    assert committed(run) == kept, "committed work must not be lost"
    (small_disk / BALLAST).unlink()
    world.finish(run)


@pytest.mark.parametrize("seam", FULL, ids=str)
def test_a_limit_on_file_size_stops_the_run_which_resumes_without_it(
    seam: Seam, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert_refused(world.annotate(run, seam=replace(seam, then="shrink")), run)
    world.finish(run)


def test_a_full_disk_for_the_log_loses_no_committed_work(
    world: World, small_disk: Path, tmp_path: Path
) -> None:
    """The run cannot print its messages, but must keep its results."""
    run, log = tmp_path / "run", small_disk / "log.txt"
    assert world.annotate(run, seam=filling(FULL[0], small_disk), output=log).code in (0, 1)
    world.finish(run)
    nowhere = world.annotate(tmp_path / "never", output=Path("/dev/full"))
    assert nowhere.code == 1


def filling(seam: Seam, disk: Path) -> Seam:
    return replace(seam, then="fill", folder=str(disk))


def committed(run: Path) -> tuple[set[str], set[int]]:
    """Returns the questions in the manifest's parts, and the seeds of the ledger's replies."""
    return question_ids(run, "trees"), stored_seeds(run)


def assert_refused(ended: Ended, run: Path) -> None:
    """Checks for exit code 1 and a message that names the unwritable file, without a traceback."""
    assert ended.code == 1, ended.said
    assert re.search(rf"(cannot write|cannot create).* {run}/\w", ended.said), ended.said
    assert "Traceback" not in ended.said
