"""Vectors that cost much to compute, kept by content hash in a database that all processes share.

SQLite in WAL mode: what was put is there whole or not at all, whoever is killed, and several
processes may read and write at once. What cannot be read as it was written is computed again, and
said: a row that fails its check counts as missing, and a database that SQLite finds malformed is
replaced by an empty one. Every row brings its hash, so unlike other entries of the cache
(`storage.cache`) a database needs no seal, which it would outgrow.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.atomic import make_folder
from storage.cache import file_lock, remove
from storage.errors import StorageError

Vector = NDArray[np.float32]
T = TypeVar("T")

BUSY_S = 60.0
"""Seconds that a write waits for other processes."""
_AT_ONCE = 500
"""Keys in one query; SQLite takes at most 32,766."""
_CREATE = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, hash BLOB)"
_PUT = "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)"


class VectorCache:
    """An open cache (see module); use it in a `with` block."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        """Opens it, or makes it.

        Args:
            path: Path of the database.
            log: Callback for messages about damage.

        Raises:
            StorageError: If the file system refused.
        """
        self._path, self._log = path, log
        self._lock = path.with_name(f"{path.name}.lock")
        self._connection: sqlite3.Connection | None = None
        make_folder(path.parent)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Returns the stored vectors among `keys`, by key.

        Raises:
            StorageError: If the database cannot be read, though it is not damaged.
        """
        rows = self._done(lambda connection: list(_rows(connection, keys)))
        sound = [
            (key, vector)
            for key, vector, told in rows
            if isinstance(vector, bytes) and told == _hash(key, vector)  # damage changes types, too
        ]
        if len(sound) < len(rows):
            self._log(
                f"{self._path}: {len(rows) - len(sound)} vectors are damaged and computed again"
            )
        return {key: np.frombuffer(vector, np.float32) for key, vector in sound}

    def put(self, vectors: Mapping[bytes, Vector]) -> None:
        """Keeps all of them, or none if this process is killed.

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
        """Runs `work`; replaces a damaged database first."""
        try:
            if self._connection is None:
                # Two that make a database at once would find it locked, however long they wait.
                with file_lock(self._lock):
                    self._connection = _connect(self._path)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            # Its subclasses are of the file system, other processes, or the program.
            if again or type(error) is not sqlite3.DatabaseError:
                raise StorageError(
                    f"{self._path}: {error}. Free disk space, fix the permissions, delete this "
                    "file, or set BRANCHWISE_CACHE to a folder on a local disk; then rerun"
                ) from error
            self._log(f"{self._path}: damaged ({error}); its vectors are computed again")
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


def _hash(key: bytes, vector: bytes) -> bytes:
    return hashlib.blake2b(key + vector, digest_size=8).digest()
