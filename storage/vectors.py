"""Vectors that cost much to compute, kept by content hash in a database that all processes share.

SQLite in WAL mode: what was put is there whole or not at all, whoever is killed, and several
processes may read and write at once. What cannot be read as it was written is computed again, and
said: a row that fails its check counts as missing, and a database that SQLite cannot read is begun
anew.
"""

import fcntl
import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.errors import StorageError

Vector = NDArray[np.float32]
Found = TypeVar("Found")

BUSY_S = 60.0
"""How long a write waits for those of other processes."""
_AT_ONCE = 500
"""Keys in one query; SQLite takes no more than 32,766."""
_CREATE = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, hash BLOB)"
_PUT = "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)"


class VectorCache:
    """An open cache (see module); use it in a `with` block."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Open it, or make it.

        Args:
            path: of the database.
            say: told what was damaged.

        Raises:
            StorageError: the file system refused.
        """
        self._path, self._say = path, say
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {path.parent}: {error.strerror}") from error

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of `keys` that are there, by key.

        Raises:
            StorageError: the database cannot be read, though it is not damaged.
        """
        rows = self._done(lambda connection: list(_rows(connection, keys)))
        sound = [(key, vector) for key, vector, hash_ in rows if hash_ == _hash(key, vector)]
        if len(sound) < len(rows):
            self._say(
                f"{self._path}: {len(rows) - len(sound)} vectors are damaged and computed again"
            )
        return {key: np.frombuffer(vector, np.float32) for key, vector in sound}

    def put(self, vectors: Mapping[bytes, Vector]) -> None:
        """Keep all of them, or none if this process is killed.

        Raises:
            StorageError: they cannot be written.
        """
        rows = [(key, vector.astype(np.float32).tobytes()) for key, vector in vectors.items()]
        hashed = [(key, vector, _hash(key, vector)) for key, vector in rows]

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany(_PUT, hashed)

        self._done(write)

    def _done(self, work: Callable[[sqlite3.Connection], Found], again: bool = False) -> Found:
        """What `work` gives; a damaged database is begun anew first."""
        try:
            if self._connection is None:
                # Two that make a database at once would find it locked, however long they wait.
                with self._alone():
                    self._connection = _connect(self._path)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            if again or not _is_damage(error):
                raise StorageError(
                    f"{self._path}: {error}. Make room or mend the permissions, or set "
                    "BRANCHWISE_CACHE to a folder on a local disk; then run the command again"
                ) from error
            self._begin_anew(error)
        return self._done(work, again=True)

    def _begin_anew(self, damage: Exception) -> None:
        self.close()
        with self._alone():
            if _sound(self._path):
                return  # another process was faster
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._say(f"{self._path}: damaged ({damage}); its vectors are computed again")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The block, with no other process in it."""
        with self._path.with_name(self._path.name + ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def close(self) -> None:
        """A second time does nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last vectors, which a ledger could not afford.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_CREATE)
    except BaseException:
        connection.close()
        raise
    return connection


def _rows(connection: sqlite3.Connection, keys: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        sql = f"SELECT key, vector, hash FROM vectors WHERE key IN ({marks})"
        yield from connection.execute(sql, some)


def _sound(path: Path) -> bool:
    """Whether SQLite can read the whole database."""
    with suppress(sqlite3.Error):
        connection = _connect(path)
        try:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        finally:
            connection.close()
    return False


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says where in SQLite
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _hash(key: bytes, vector: bytes) -> bytes:
    return hashlib.blake2b(key + vector, digest_size=8).digest()
