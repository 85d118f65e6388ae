"""Reads files from untrusted folders: regular files only, up to a size limit.

A run or a model may come from a colleague or the internet. A link in it may lead out of the folder,
a pipe or a device never ends, and a sparse file may be larger than memory. So a run folder must
hold only folders and regular files. `reject_special_files` checks this before a stage starts, and
every reader opens its files here. The folder itself may be a link, because the user named it.
"""

import os
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path, PurePosixPath

from base.errors import ConfigError

RECORD_BYTES = 16 << 20
"""Maximum size of a record that Branchwise or a training keeps (`provenance.json` has a few kB)."""
LOG_BYTES = 256 << 20
"""Maximum size of a file of many lines (a journal, a manifest, the curve of a training)."""

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # else a pipe without a writer blocks
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
        raise _strange(folder, stat.S_IFLNK)
    waiting = [os.fspath(folder)]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                raise _strange(Path(entry.path), entry.stat(follow_symlinks=False).st_mode)


def reject_irregular_files(*paths: Path) -> None:
    """Rejects existing paths that are not regular files.

    Libraries that open files by name, such as SQLite, need this check.

    Raises:
        ConfigError: If a path is a link, a pipe, a device, a socket or a folder.
    """
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except (OSError, ValueError):
            continue  # opening it raises the reason
        if not stat.S_ISREG(mode):
            raise _strange(path, mode)


def open_inside(folder: Path, name: str, most: int | None = None) -> BufferedReader:
    """Opens a regular file inside a folder, without following links below the folder.

    Args:
        folder: Path of the folder; may itself be a link.
        name: Path relative to `folder`, with forward slashes.
        most: Maximum size in bytes; None for any size.

    Raises:
        ConfigError: If the name leads out of the folder or through a link, or the file is not
            regular or too large.
        OSError: If it is missing or cannot be opened.
    """
    *above, last = _steps(folder, name)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in above:
            below = os.open(step, _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        descriptor = os.open(last, _OPEN | os.O_NOFOLLOW, dir_fd=at)
    except FileNotFoundError:
        raise
    except OSError:
        _check_steps(folder, (*above, last))
        raise
    finally:
        os.close(at)
    return _checked(descriptor, folder / name, most)


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
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError:
        reject_irregular_files(path.resolve())
        raise
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"{os.fspath(path)!r}: is not a valid file name") from error
    return _checked(descriptor, path, most)


def read_named(path: Path, most: int = RECORD_BYTES) -> bytes:
    """Returns the content of a file that a person named, or of a shell's stream (`/dev/fd/…`).

    Raises:
        ConfigError: If it is not a regular file or a stream, or is too large.
        OSError: If it is missing or cannot be read.
    """
    if not os.fspath(path).startswith(_STREAMS):
        with open_named(path, most) as file:
            return file.read(most)
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ConfigError(f"{path}: is longer than the limit of {most:,} bytes")
    return content


def _steps(folder: Path, name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ConfigError(f"{folder}: {name!r} does not name a file inside this folder")
    return path.parts


def _check_steps(folder: Path, steps: Iterable[str]) -> None:
    """Rejects a path that goes through a link or special file, or ends at no regular file."""
    path = folder
    *above, last = steps
    for step in above:
        path /= step
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise _strange(path, mode)
    reject_irregular_files(path / last)


def _checked(descriptor: int, path: Path, most: int | None) -> BufferedReader:
    """Returns a file object for the descriptor; closes the descriptor if the check fails."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _strange(path, status.st_mode)
        if most is not None and status.st_size > most:
            raise ConfigError(
                f"{path}: has {status.st_size:,} bytes, but such a file has at most {most:,}. "
                "Restore the correct file"
            )
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []  # reading or writing there raises the reason


def _strange(path: Path, mode: int) -> ConfigError:
    if stat.S_ISLNK(mode):
        return ConfigError(
            f"{path}: is a symbolic link, which is not followed inside a run or model folder. "
            "Put the file or folder itself there, or link the whole folder"
        )
    return ConfigError(f"{path}: is {_kind(mode)}, not a regular file; remove it, or restore it")


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
