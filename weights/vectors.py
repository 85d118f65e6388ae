"""Vectors that are expensive to compute, stored by content hash in a database for all processes.

SQLite in WAL mode stores all vectors of a `put` or none, even if a process is killed, and several
processes may read and write at once. Damaged vectors are logged and recomputed: a row that fails
its check counts as missing, and an empty database replaces one that SQLite finds malformed. Every
row has its hash. So the database needs no seal, unlike other entries of the cache
(`storage.cache`), and a seal would be outdated by the next row.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from base.atomic import make_folder
from base.errors import StorageError
from storage.cache import file_lock, remove

Vector = NDArray[np.float32]
T = TypeVar("T")

BUSY_S = 60.0
"""Seconds that a write waits for other processes."""
_AT_ONCE = 500
"""Keys per query; SQLite accepts at most 32,766."""
_CREATE = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, hash BLOB)"
_PUT = "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)"


class VectorCache:
    """An open cache (see module); use it in a `with` block."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        """Prepares the cache; the first access opens or creates the database.

        Args:
            path: Path of the database.
            log: Callback for messages about damage.

        Raises:
            StorageError: If the folder cannot be created.
        """
        self._path, self._log = path, log
        self._lock = path.with_name(f"{path.name}.lock")
        self._connection: sqlite3.Connection | None = None
        make_folder(path.parent)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Returns the stored vectors among `keys`, by key.

        Raises:
            StorageError: If the database cannot be read for another reason than damage.
        """
        rows = self._done(lambda connection: list(_rows(connection, keys)))
        sound = [
            (key, vector)
            for key, vector, told in rows
            if isinstance(vector, bytes) and told == _hash(key, vector)  # damage can change types
        ]
        if len(sound) < len(rows):
            self._log(f"{self._path}: recomputing {len(rows) - len(sound)} damaged vectors")
        return {key: np.frombuffer(vector, np.float32) for key, vector in sound}

    def put(self, vectors: Mapping[bytes, Vector]) -> None:
        """Stores all vectors, or none if this process is killed.

        Raises:
            StorageError: If they cannot be written.
        """
        rows = [(key, vector.astype(np.float32).tobytes()) for key, vector in vectors.items()]
        hashed = [(key, vector, _hash(key, vector)) for key, vector in rows]

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany(_PUT, hashed)

        self._done(write)

    def _done(self, work: Callable[[sqlite3.Connection], T], again: bool = False) -> T:
        """Runs `work`; if the database is damaged, replaces it and retries once."""
        try:
            if self._connection is None:
                # Without the lock, two processes that create a database at once would fail on
                # SQLite's lock.
                with file_lock(self._lock):
                    self._connection = _connect(self._path)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            # Subclasses mean faults of the file system, other processes or the program, not damage.
            if again or type(error) is not sqlite3.DatabaseError:
                raise StorageError(
                    f"{self._path}: {error}. Free disk space, fix the permissions, delete this "
                    "file, or set BRANCHWISE_CACHE to a folder on a local disk; then rerun"
                ) from error
            self._log(f"{self._path}: damaged ({error}). Its vectors will be recomputed")
        self.close()
        with file_lock(self._lock):
            for suffix in ("", "-wal", "-shm"):
                remove(self._path.with_name(self._path.name + suffix))
        return self._done(work, again=True)

    def close(self) -> None:
        """Closes the database. A second call does nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # Unlike a ledger, this cache may lose its last vectors in a power cut.
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


def _hash(key: bytes, vector: bytes) -> bytes:
    return hashlib.blake2b(key + vector, digest_size=8).digest()
