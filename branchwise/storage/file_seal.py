"""Seals of files that others map or load: stored hashes, compared before use.

A disk, a copy or a cable can flip a bit. Weights or an index with a flipped bit still load, but
give other answers. So a seal is written directly after the files, from the content that the system
still holds in memory. Before use, every byte is compared with the seal. A seal detects damage, not
forgery: anyone who can write next to a file could also write a seal.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, atomic_write_json, object_inside

SEAL = "seal.json"
"""Name of the seal in a folder; it lists all other files."""

_intact: dict[Path, list[tuple[int, int, int]]] = {}
"""Seals that this process has compared, with inode, size and change time (ns) of each file."""


def seal_folder(folder: Path, name: str) -> None:
    """Writes the current hashes of all files of `folder` into its `SEAL`.

    Args:
        folder: Folder of regular files and folders only.
        name: Name of the entry; it reveals a folder that was swapped for another.

    Raises:
        StorageError: If the seal cannot be written.
    """
    _write(folder / SEAL, name, _files_in(folder))


def verify_folder(folder: Path, name: str) -> str | None:
    """Returns the fault of a sealed folder; None if it is intact.

    This process does not reread intact files until one is changed or replaced.
    """
    if folder.is_symlink() or not folder.is_dir():
        return "it is not a folder"
    try:
        return _fault(folder / SEAL, name, _files_in(folder))
    except FileNotFoundError as error:  # another process is replacing it
        return f"{error.filename} disappeared"


def seal_file(path: Path) -> None:
    """Writes the current hash of a file into a seal next to it.

    Raises:
        StorageError: If the seal cannot be written.
    """
    _write(_seal_of(path), path.name, {path.name: path})


def file_fault(path: Path) -> str | None:
    """Returns the fault of a file that `seal_file` sealed; None if it is intact."""
    return _fault(_seal_of(path), path.name, {path.name: path})


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _files_in(folder: Path) -> dict[str, Path]:
    """Returns the files below a folder, except its seal, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix(): path for path in files if path != folder / SEAL}


def _write(seal: Path, name: str, files: Mapping[str, Path]) -> None:
    hashes = {file: _hash(path) for file, path in files.items()}
    atomic_write_json(seal, {"name": name, "files": hashes})


def _fault(seal: Path, name: str, files: Mapping[str, Path]) -> str | None:
    try:
        stats = [path.stat() for path in (*files.values(), seal)]
        stamps = [(stat.st_ino, stat.st_size, stat.st_ctime_ns) for stat in stats]
        if _intact.get(seal) == stamps:
            return None
        fault = _difference(object_inside(seal.parent, seal.name), name, files)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        return f"{seal.name} cannot be read ({error})"
    if fault is None:
        _intact[seal] = stamps
    return fault


def _difference(sealed: Mapping[str, Any], name: str, files: Mapping[str, Path]) -> str | None:
    if sealed["name"] != name:
        return "its seal is of another entry"
    for file in sorted(sealed["files"].keys() | files.keys()):
        if file not in files or file not in sealed["files"]:
            return f"{file} is missing, or was added later"
        if not files[file].is_file() or _hash(files[file]) != sealed["files"][file]:
            return f"the content of {file} changed"
    return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
