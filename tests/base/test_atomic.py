"""Atomic writes: a file is complete or absent, even if the writer is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from branchwise.base.atomic import (
    atomic_path,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
)
from branchwise.base.errors import StorageError

REPOSITORY = Path(__file__).resolve().parents[2]

# Blocks just before the rename, when everything is written and synced.
BLOCKED_WRITER = """
import sys
from pathlib import Path
import branchwise.base.atomic as atomic

real = Path.replace
def stop_at_the_seam(self, target):
    print("at the seam", flush=True)
    sys.stdin.read()
    return real(self, target)
Path.replace = stop_at_the_seam
atomic.atomic_write_bytes(Path(sys.argv[1]), b"new" * 100_000)
"""


def _kill_before_the_rename(target: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", BLOCKED_WRITER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"at the seam\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL


def test_a_killed_writer_leaves_no_torn_file(tmp_path: Path) -> None:
    absent, present = tmp_path / "new.parquet", tmp_path / "old.parquet"
    present.write_bytes(b"old")
    _kill_before_the_rename(absent)
    _kill_before_the_rename(present)
    assert not absent.exists()
    assert present.read_bytes() == b"old"
    # Left-over temporary files must not match *.parquet, even in a glob that matches dotfiles.
    assert {p.name for p in tmp_path.iterdir() if p.suffix == ".parquet"} == {"old.parquet"}
    atomic_write_bytes(absent, b"x")
    assert absent.read_bytes() == b"x"


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a" / "file"
    atomic_write_text(target, "first\n")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "first\n"
    assert list(target.parent.iterdir()) == [target]
    atomic_write_text(target, "é\r\n")
    assert target.read_bytes() == b"\xc3\xa9\r\n"
    with pytest.raises(ValueError, match="JSON"):
        atomic_write_json(target, {"x": float("nan")})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_failed_write_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder is needed")
    target = tmp_path / "blocked" / "part.parquet"
    with pytest.raises(StorageError, match=r"blocked/part\.parquet"):
        atomic_write_bytes(target, b"x")
    full = tmp_path / "full"
    with pytest.raises(StorageError, match="No space left"), atomic_path(full) as temporary:
        temporary.unlink()
        temporary.symlink_to("/dev/full")
        temporary.write_bytes(b"x")
    assert not full.exists()
