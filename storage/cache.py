"""The cache: indexes, converted weights and vectors, which can be rebuilt.

    <cache folder>/<room>/<entry>/…        rooms: indexes, gguf, safetensors, reference, embeddings

The folders belong to one user alone: whoever may write into them decides what a search finds and
what a model says. An entry is a folder that appears whole or not at all, with a seal of its files
(`storage.file_seal`). It is compared with the seal before it is used, once per process, and made
again where it differs. Readers map its files, so they are never edited: another folder takes the
place, and what is mapped stays what it was.
"""

import fcntl
import logging
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.atomic import sync
from storage.errors import ConfigError, StorageError
from storage.file_seal import folder_fault, seal_folder
from storage.text import Log

_ELSEWHERE = "set the environment variable BRANCHWISE_CACHE to a folder"
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`$BRANCHWISE_CACHE`, or `~/.cache/branchwise`; it may not exist yet.

    Raises:
        ConfigError: If this user has no home.
    """
    given = os.environ.get("BRANCHWISE_CACHE")
    try:
        return Path(given).expanduser() if given else Path.home() / ".cache" / "branchwise"
    except RuntimeError as error:
        raise ConfigError(
            f"the cache folder cannot be found ({error}): {_ELSEWHERE} of your own"
        ) from error


def cache_room(name: str) -> Path:
    """Returns the folder of one kind of entries, inside the cache folder; both are made if missing.

    Raises:
        ConfigError: If one of them is not this user's alone.
        StorageError: If the file system refused.
    """
    top = cache_folder()
    for folder in (top, top / name):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        except OSError as error:
            raise _storage_error(folder, error) from error
        _check_not_shared(folder)
    return top / name


def check_cache_not_shared() -> None:
    """Checks that no other user can change the cache folder; a missing one is fine.

    Raises:
        ConfigError: If somebody can.
        StorageError: If it cannot be looked at.
    """
    if os.path.lexists(cache_folder()):
        _check_not_shared(cache_folder())


def _check_not_shared(folder: Path) -> None:
    try:
        link, found = folder.lstat(), folder.stat()
    except OSError as error:
        raise _storage_error(folder, error) from error
    why = None
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
        why = f"is a link that {_user(link.st_uid)} made"
    elif found.st_uid != os.geteuid():
        why = f"belongs to {_user(found.st_uid)}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = "can be written by others (`chmod go-w` takes that from them)"
    if why is not None:
        raise ConfigError(
            f"the cache folder {folder} {why}. A cache that others can change is not used: they "
            f"would decide what a search finds. Fix that, or {_ELSEWHERE} of your own"
        )


def open_entry(folder: Path, build: Callable[[Path], None], log: Log | None = None) -> Path:
    """Returns an intact entry of the cache; builds it if necessary.

    Of two processes that want it at once one makes it. A killed one leaves nothing that could be
    taken for an entry.

    Args:
        folder: The entry; its name identifies its content.
        build: fills an empty folder.
        log: Callback for messages about damaged entries; defaults to the log.

    Returns:
        `folder`.

    Raises:
        StorageError: If the file system refused (no room, no permission, a file in the way).
    """
    try:
        if folder_fault(folder, folder.name) is None:
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.with_name(f"{folder.name}.lock")):
            fault = folder_fault(folder, folder.name)  # another process may have been faster
            if fault is not None:
                if os.path.lexists(folder):
                    (log or _log.warning)(f"{folder}: damaged, so it is rebuilt ({fault})")
                _replace(folder, build)
    except OSError as error:
        raise _storage_error(folder, error) from error
    return folder


@contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Gives the block, with no other process in it; the file `lock` stays."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Deletes `path`. Entries of another user are renamed instead."""
    if not os.path.lexists(path):
        return
    aside = _temporary_beside(path)
    path.rename(aside)
    _discard(aside)


def _replace(folder: Path, build: Callable[[Path], None]) -> None:
    for left in folder.parent.glob(f".{folder.name}-*.tmp"):
        _discard(left)  # of a killed process: we hold the lock
    new = _temporary_beside(folder)
    new.mkdir(mode=0o700)
    try:
        build(new)
        seal_folder(new, folder.name)
        for written in (*new.rglob("*"), new):
            sync(written)
        remove(folder)
        new.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


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
        f"cannot make {path} ({error}): free disk space, fix the permissions, or {_ELSEWHERE} that "
        "can be written"
    )


def _user(uid: int) -> str:
    with suppress(KeyError):
        return f"user {pwd.getpwuid(uid).pw_name}"
    return f"uid {uid}"
