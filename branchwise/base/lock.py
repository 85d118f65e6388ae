"""One writer per run: a lock file that names its holder and that a dead process cannot keep."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from .errors import ConfigError, StorageError
from .file_systems import LOCAL_DISK

_LONGEST = 20
"""Maximum length of a process id in characters."""
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems that have no locks: NFS without a lock server, Lustre without `flock`."""


def lock_path(ledger: Path) -> Path:
    """Returns the path of a run's lock, next to its ledger."""
    return ledger.with_name(ledger.name + ".lock")


class RunLock:
    """An exclusive lock, held from construction to `release` (or to the end of a `with` block).

    The kernel releases it when the process ends, even by a kill. The file itself stays: removing it
    would let two processes lock two files with one name.
    """

    def __init__(self, path: Path) -> None:
        """Takes the lock.

        Raises:
            ConfigError: If another process holds it (named by its pid).
            StorageError: If the file cannot be opened or locked.
        """
        self.path = path
        try:
            # Follow no link, which may lead to a file that must not be emptied.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BlockingIOError:
            holder = os.read(self._descriptor, _LONGEST).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise ConfigError(
                f"{path.parent} is in use by process {holder or '(unknown)'}; "
                "wait until it ends, or stop it"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            hint = f". Its file system has no locks: {LOCAL_DISK}"
            message = f"cannot lock {path}: {error.strerror}"
            raise StorageError(
                message + hint if error.errno in _WITHOUT_LOCKS else message
            ) from error

    def release(self) -> None:
        """Releases the lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
