"""Reads files of run and model folders: regular files only, up to a size limit.

A run or a model may come from a colleague or the internet. A link in it may lead out of the folder,
a pipe or a device never ends, and a sparse file may be larger than memory. `reject_special_files`
checks a run folder before a stage starts. The folder itself may be a link, because the user named
it.
"""

import os
from io import BufferedReader
from pathlib import Path

from .errors import ConfigError

RECORD_BYTES = 16 << 20
"""Maximum size of a record that Branchwise or a training keeps (`provenance.json` has a few kB)."""
LOG_BYTES = 256 << 20
"""Maximum size of a file of many lines (a journal, a manifest, the curve of a training)."""

_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Streams that a shell passes instead of a file, as in `--config <(…)`."""


def reject_special_files(folder: Path, *, linked: bool = True) -> None:
    """Rejects a folder that holds anything except folders and regular files, at any depth.

    Hidden entries are ignored: Branchwise does not read them, and editors create links there.

    Args:
        folder: Folder to check; it may be missing.
        linked: Whether the folder itself may be a link.

    Raises:
        ConfigError: If it holds anything else; the message names the first such entry.
    """
    if not linked and folder.is_symlink():
        raise _strange(folder)
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if Path(parent, name).is_symlink():
                raise _strange(Path(parent, name))
        reject_irregular_files(*(Path(parent, name) for name in files if not name.startswith(".")))


def reject_irregular_files(*paths: Path) -> None:
    """Rejects existing paths that are not regular files.

    Raises:
        ConfigError: If a path is a link, a pipe, a device, a socket or a folder.
    """
    for path in paths:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise _strange(path)


def open_inside(folder: Path, name: str, most: int | None = None) -> BufferedReader:
    """Opens a regular file inside a folder.

    Args:
        folder: Path of the folder; may itself be a link.

    Raises:
        ConfigError: If the name leads out of the folder, or the file is not regular or too large.
        OSError: If it is missing or cannot be opened.
    """
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder}: {name!r} does not name a file inside this folder")
    return open_named(folder / name, most)


def read_inside(folder: Path, name: str, most: int = RECORD_BYTES) -> bytes:
    """Returns the content of a file inside a folder (see `open_inside`)."""
    with open_inside(folder, name, most) as file:
        return file.read(most)


def open_named(path: Path, most: int | None = None) -> BufferedReader:
    """Opens a regular file that a person named, or one of a model folder; follows links.

    Raises:
        ConfigError: If it is not a regular file, or is too large.
        OSError: If it is missing or cannot be opened.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise _strange(path.resolve())
    if most is not None and size > most:
        raise ConfigError(
            f"{path}: has {size:,} bytes, but such a file has at most {most:,}. Restore the "
            "correct file"
        )
    return path.open("rb")


def read_named(path: Path, most: int = RECORD_BYTES) -> bytes:
    """Returns the content of a file that a person named, or of a shell's stream (`/dev/fd/…`).

    Raises:
        ConfigError: If it is not a regular file or a stream, or is too large.
        OSError: If it is missing or cannot be read.
    """
    is_stream = os.fspath(path).startswith(_STREAMS)
    with path.open("rb") if is_stream else open_named(path, most) as file:
        return file.read(most)


def _strange(path: Path) -> ConfigError:
    if path.is_symlink():
        return ConfigError(
            f"{path}: is a symbolic link, which is not followed inside a run or model folder. "
            "Put the file or folder itself there, or link the whole folder"
        )
    kind = "a folder" if path.is_dir() else "a pipe" if path.is_fifo() else "a device or socket"
    return ConfigError(f"{path}: is {kind}, not a regular file; remove it, or restore it")
