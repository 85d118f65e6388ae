"""Vectors that cost much to compute, kept by content hash in a database that all processes share.

SQLite in WAL mode: what was put is there whole or not at all, whoever is killed, and several
processes may read and write at once. What cannot be read as it was written is computed again, and
said: a row that fails its check counts as missing, and a database that SQLite cannot read, or that
is not a file of this user, is replaced by an empty one. Every row brings its hash, so unlike other
entries of the cache (`storage.cache`) a database needs no seal, which it would outgrow.
"""

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
"""How long a write waits for those of other processes."""
_AT_ONCE = 500
"""Keys in one query; SQLite takes no more than 32,766."""
_CHECKED_WHOLE = 2**30
"""Most bytes of a database that is checked whole, once a process (half a second). Only that finds
damage to the order of keys, which hides vectors and changes none."""
_NOT_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""What the file system and other processes do."""

_checked: set[tuple[Path, int]] = set()
"""Path and inode of the databases that were checked whole in this process."""
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
        self._lock = path.with_name(f"{path.name}.lock")
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        make_folder(path.parent)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of `keys` that are there, by key.

        Raises:
            StorageError: the database cannot be read, though it is not damaged.
        """
        rows = self._done(lambda connection: list(_rows(connection, keys)))
        sound = [(row[0], row[1]) for row in rows if _is_sound(*row)]
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

    def _done(self, work: Callable[[sqlite3.Connection], T], again: bool = False) -> T:
        """What `work` gives; a damaged database is replaced first."""
        try:
            if self._connection is None:
                # Two that make a database at once would find it locked, however long they wait.
                with file_lock(self._lock):
                    self._connection = _connect(self._path)
                    self._inode = self._path.stat().st_ino
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            if again or not _is_damage(self._path, error):
                raise self._storage_error(error) from error
            try:
                self._start_over(error)
            except OSError as refused:
                raise self._storage_error(refused) from refused
        return self._done(work, again=True)

    def _storage_error(self, error: Exception) -> StorageError:
        return StorageError(
            f"{self._path}: {error}. Make room or mend the permissions, or set BRANCHWISE_CACHE to "
            "a folder on a local disk; then run the command again"
        )

    def _start_over(self, damage: Exception) -> None:
        with file_lock(self._lock):
            # Our connection keeps the number of the damaged file from being given to another one.
            if self._connection is None:
                faster = _is_readable(self._path)
            else:
                faster = self._path.exists() and self._path.stat().st_ino != self._inode
            if not faster:
                for part in _parts(self._path):
                    remove(part)
        self.close()
        if not faster:
            self._say(f"{self._path}: damaged ({damage}); its vectors are computed again")

    def close(self) -> None:
        """A second time does nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _parts(path: Path) -> list[Path]:
    """The files that SQLite reads for a database."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def _connect(path: Path) -> sqlite3.Connection:
    """A connection to a sound database, which is made if it is missing.

    Raises:
        sqlite3.Error: it is damaged, or SQLite cannot read or write it now.
        OSError: it cannot be looked at.
    """
    for part in _parts(path):
        if os.path.lexists(part) and not _own_file(part.lstat()):
            raise sqlite3.DatabaseError(f"{part.name} is not a regular file of this user")
    connection = sqlite3.connect(path, timeout=BUSY_S)
    try:
        connection.text_factory = bytes  # damage may declare a vector to be text
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last vectors, which a ledger could not afford.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_CREATE)
        _check_whole(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _own_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _check_whole(path: Path, connection: sqlite3.Connection) -> None:
    status = path.stat()
    if status.st_size > _CHECKED_WHOLE or (path, status.st_ino) in _checked:
        return
    (told,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if told != b"ok":
        raise sqlite3.DatabaseError(told.decode(errors="replace"))
    _checked.add((path, status.st_ino))


def _rows(connection: sqlite3.Connection, keys: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        sql = f"SELECT key, vector, hash FROM vectors WHERE key IN ({marks})"
        yield from connection.execute(sql, some)


def _is_sound(key: Any, vector: Any, hash_: Any) -> bool:
    # What is not bytes was damaged, too: a number in the place of a vector, say.
    return isinstance(key, bytes) and isinstance(vector, bytes) and hash_ == _hash(key, vector)


def _is_readable(path: Path) -> bool:
    """Whether SQLite can read the database."""
    with suppress(sqlite3.Error):
        _connect(path).close()
        return True
    return False


def _is_damage(path: Path, error: Exception) -> bool:
    # A ProgrammingError is a mistake of the program's.
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, sqlite3.ProgrammingError):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return True
    if code & 0xFF == sqlite3.SQLITE_READONLY:  # by what the header says, or by the file system
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return code & 0xFF not in _NOT_DAMAGE


def _hash(key: bytes, vector: bytes) -> bytes:
    return hashlib.blake2b(key + vector, digest_size=8).digest()
