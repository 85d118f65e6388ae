"""Tables of mounts, and locks that a file system refuses."""

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

from branchwise.base import file_systems


def mount_line(point: Path, kind: str) -> str:
    """Returns a line of a mountinfo file."""
    escaped = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", str(point))
    return f"36 35 0:40 /runs {escaped} rw,relatime shared:2 - {kind} source rw\n"


def mount_share(monkeypatch: pytest.MonkeyPatch, share: Path, kind: str) -> None:
    """Replaces the table of mounts: `share` is on a file system of this kind, all else on ext4."""
    table = share.with_name("mountinfo")
    table.write_text(mount_line(Path("/"), "ext4") + mount_line(share, kind))
    monkeypatch.setattr(file_systems, "MOUNTS", table)


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    """Makes every lock of a run fail with this error; those of the cache wait, and work."""
    lock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            raise OSError(number, os.strerror(number))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
