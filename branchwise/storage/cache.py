"""The cache: indexes, converted weights and vectors, which can be rebuilt.

    <cache folder>/<room>/<entry>/…        rooms: indexes, gguf, safetensors, reference,
                                           embeddings

(`logs` holds the logs of vLLM servers.)

The folders must belong to one user alone, because anyone who can write into them controls the
results of searches and models. An entry is a folder that appears whole or not at all, with a seal
of its files (`storage.file_seal`). Each process compares it with the seal before the first use, and
rebuilds it if it differs. Readers map the files, so files are never edited: a new folder replaces
the old one, and mapped content does not change.
"""

import fcntl
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from branchwise.base import ConfigError, Log, StorageError, sync

from .file_seal import seal_folder, verify_folder

_ELSEWHERE = "set the environment variable BRANCHWISE_CACHE to a folder"
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Returns `$BRANCHWISE_CACHE`, or `~/.cache/branchwise`; the folder may be missing.

    Raises:
        ConfigError: If the user's home folder cannot be found.
    """
    folder = os.environ.get("BRANCHWISE_CACHE")
    try:
        return Path(folder).expanduser() if folder else Path.home() / ".cache" / "branchwise"
    except RuntimeError as error:
        raise ConfigError(
            f"the cache folder cannot be found ({error}): {_ELSEWHERE} of your own"
        ) from error


def cache_section(name: str) -> Path:
    """Returns the folder for one kind of entries in the cache folder; creates both if missing.

    Raises:
        ConfigError: If another user can change the cache folder.
        StorageError: If the file system refused.
    """
    top = cache_folder()
    try:
        top.parent.mkdir(parents=True, exist_ok=True)
        for folder in (top, top / name):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _storage_error(top / name, error) from error
    check_cache_not_shared()
    return top / name


def check_cache_not_shared() -> None:
    """Checks that no other user can change the cache folder, if it exists.

    Raises:
        ConfigError: If another user can change it.
    """
    folder = cache_folder()
    if not folder.exists():
        return
    owner = folder.stat()
    if owner.st_uid != os.geteuid() or owner.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"the cache folder {folder} belongs to another user, or others can write it. It is not "
            f"used, because they could change search results. Fix this with `chmod go-w`, or "
            f"{_ELSEWHERE} of your own"
        )


def get_or_build(folder: Path, build: Callable[[Path], None], log: Log | None = None) -> Path:
    """Returns an intact entry of the cache; builds it if necessary.

    If two processes need an entry at once, only one builds it. A killed process leaves no partial
    entry.

    Args:
        log: Callback for messages about damaged entries; defaults to the log.

    Raises:
        StorageError: If the file system refused (no room, no permission, a file in the way).
    """
    try:
        if verify_folder(folder, folder.name) is None:
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _file_lock(folder.with_name(f"{folder.name}.lock")):
            fault = verify_folder(folder, folder.name)  # another process may have been faster
            if fault is not None:
                if os.path.lexists(folder):
                    (log or _log.warning)(f"{folder}: damaged, so it is rebuilt ({fault})")
                _replace(folder, build)
    except OSError as error:
        raise _storage_error(folder, error) from error
    return folder


@contextmanager
def _file_lock(lock: Path) -> Iterator[None]:
    """Keeps other processes out of the block; the file `lock` is not deleted."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(folder: Path, build: Callable[[Path], None]) -> None:
    for unfinished in folder.parent.glob(f".{folder.name}-*.tmp"):
        _discard(unfinished)  # left by a killed process, because we hold the lock
    new = _temporary_beside(folder)
    new.mkdir(mode=0o700)
    try:
        build(new)
        seal_folder(new, folder.name)
        for written in (*new.rglob("*"), new):
            sync(written)
        if os.path.lexists(folder):
            old = _temporary_beside(folder)
            folder.rename(old)
            _discard(old)  # processes that have mapped its files keep their content
        new.rename(folder)
        sync(folder.parent)
    finally:
        _discard(new)


def _discard(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}.tmp")


def _storage_error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot create {path} ({error}): free disk space, fix the permissions, or {_ELSEWHERE} "
        "that you can write"
    )
