"""What may lie where a file should be: each puts something there that no reader must follow."""

import os
from collections.abc import Callable
from pathlib import Path

Strange = Callable[[Path, Path], None]
"""Puts something at a path; the second one is a folder outside, for what a link leads to."""


def _cleared(path: Path, outside: Path) -> Path:
    """Move what lies at `path` out of the way; where it went."""
    path.parent.mkdir(parents=True, exist_ok=True)
    moved = outside / path.name
    outside.mkdir(exist_ok=True)
    if path.exists():
        path.rename(moved)
    else:
        moved.write_text("not of this run\n")
    return moved


def link(path: Path, outside: Path) -> None:
    """The very file, or folder, that was there, elsewhere."""
    path.symlink_to(_cleared(path, outside))


def endless(path: Path, outside: Path) -> None:
    """A device without end; made as a link, since only root can make one."""
    _cleared(path, outside)
    path.symlink_to("/dev/zero")


def pipe(path: Path, outside: Path) -> None:
    _cleared(path, outside)
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    _cleared(path, outside)
    path.mkdir()


def sparse(path: Path, outside: Path) -> None:
    """Ten gigabytes that take no room on the disk."""
    _cleared(path, outside)
    path.touch()
    os.truncate(path, 10 << 30)
