"""Files that appear whole or not at all: write aside, sync, rename, sync the folder.

A reader never sees a torn file, even if the writer dies, and a file that was seen once
survives a power cut. Accepted in exchange:

- Two syncs per file (milliseconds on a disk): meant for parts and manifests, not for single rows.
- The last of several concurrent writers wins; the ledger's lock keeps a run to one writer.
- A killed writer leaves its temporary file (`.NAME-….tmp`) behind. Nothing reads it: readers go
  by the manifest, and it does not end in `.parquet`.
- An existing file is replaced, not edited: hard links to it keep the old content, and its mode
  becomes that of a new file.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import StorageError
from .terminal_escape import terminal_safe_json


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, which becomes `path` if the block succeeds.

    The folder is created if it is missing. If the block raises, `path` stays as it was and the
    temporary file is removed.

    Raises:
        StorageError: If the file system refused (no room, no permission), with the path.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary_beside(path)
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot write {path}: {reason}; no partial file was left. "
            "Free disk space or fix the permissions, then rerun the same command"
        ) from error


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents.

    Raises:
        StorageError: If the file system refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot create the folder {folder}: {error.strerror or error}. Free disk space or fix "
            "the permissions, then rerun the same command"
        ) from error


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Makes `path` hold exactly `data` (see `atomic_path`)."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def atomic_write_text(path: Path, text: str) -> None:
    """Makes `path` hold exactly `text`, as UTF-8 with its own line ends."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_json(path: Path, value: Any) -> None:
    """Makes `path` hold `value` as readable JSON, with keys in the given order.

    Raises:
        StorageError: See `atomic_path`.
        ValueError: If `value` holds NaN or an infinity, which JSON cannot express.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_text(path, terminal_safe_json(text) + "\n")


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's names, are on disk.

    Raises:
        OSError: If the file system refused.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Returns whether a file was left by a killed writer; such files are never read."""
    return path.name.startswith(".") and path.suffix == ".tmp"


def _temporary_beside(path: Path) -> Path:
    """Creates a file in the folder of `path`: a rename is atomic only within one file system."""
    # Cut the name: with its prefix and suffix it may have at most 255 bytes.
    temporary = path.with_name(f".{path.name[:40]}-{secrets.token_hex(6)}.tmp")
    temporary.touch(exist_ok=False)
    return temporary
