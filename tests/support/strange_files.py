"""Special files in place of a regular file, which readers must refuse."""

import os
from collections.abc import Callable
from pathlib import Path

Strange = Callable[[Path, Path], None]
"""Function that puts a special file at the first path; the second is a folder for link targets."""


def _cleared(path: Path, outside: Path) -> Path:
    """Moves the file at `path` to the folder `outside`; returns its new path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    moved = outside / path.name
    outside.mkdir(exist_ok=True)
    if path.exists():
        path.rename(moved)
    else:
        moved.write_text("not of this run\n")
    return moved


def link(path: Path, outside: Path) -> None:
    """Moves the file or folder to `outside` and links to it."""
    path.symlink_to(_cleared(path, outside))


def endless(path: Path, outside: Path) -> None:
    """Links to an endless device, since only root can create one."""
    _cleared(path, outside)
    path.symlink_to("/dev/zero")


def pipe(path: Path, outside: Path) -> None:
    _cleared(path, outside)
    os.mkfifo(path)


def sparse(path: Path, outside: Path) -> None:
    """Creates a sparse file of 10 GiB that takes no space on the disk."""
    _cleared(path, outside)
    path.touch()
    os.truncate(path, 10 << 30)
