"""The ledger of a run: every model call, stored before its result is used.

SQLite in WAL mode with `synchronous=FULL`: once `put` returns, its call survives a kill and a power
cut. One thread writes (group commit, `storage.ledger_writer`); reads use a separate connection and
see committed rows only. One process at a time holds a run (`base.lock`).

Every row of calls and engines ends in a checksum, which is compared whenever the row is read for
use. A damaged row raises an error: it is neither used nor silently paid for twice.
`storage.ledger_check` checks all rows.
"""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from branchwise.base import RunLock, StorageError, lock_path, make_folder, sync

from .ledger_check import LEDGER_VERSION, DamagedRow, check_schema, damaged, read_rows
from .ledger_mark import lost_calls, write_mark
from .ledger_rows import (
    CALL_COLUMNS,
    CREATE,
    PUT_CALL,
    PUT_ENGINE,
    SEALED,
    SUMS,
    Call,
    Totals,
    call_values,
    sound,
)
from .ledger_writer import Entry, LedgerWriter, write_error

BUSY_S = 60.0
"""Seconds that a write waits for other processes, whose writes take milliseconds."""
QUESTIONS = 2048
"""Questions whose keys are kept (20 MB at 100 calls each); an older one is read again if needed."""


class Ledger:
    """An open ledger (see module); use it in a `with` block.

    Attributes:
        path: The database; next to it are SQLite's own files and `<name>.lock`.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the ledger, and holds the run until `close`.

        Raises:
            ConfigError: If another process holds the run (named by its pid).
            StorageError: If the file is damaged, not a ledger, of another version, or lacks calls
                that were stored.
        """
        self.path = path
        self._read_lock = threading.Lock()
        make_folder(path.parent)
        self._lock = RunLock(lock_path(path))
        try:
            writing = _connect(path)
            self._reading = _connect(path)
            if lost := lost_calls(path, self._reading):
                raise StorageError(lost)
            self._totals = Totals(*self._rows(f"SELECT {SUMS} FROM calls WHERE error IS NULL")[0])
        except BaseException as error:
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise write_error("open", path, error) from error
            raise
        self._stored = StoredKeys(self._keys_of)
        self._commits = LedgerWriter(writing, path)
        self._closed = False

    async def put(self, call: Call) -> None:
        """Stores a call; returns once it is on disk. An existing reply is kept.

        Raises:
            StorageError: If the call could not be stored (full disk). Its result must not be used.
        """

        def count(changed: int) -> None:
            if call.error is None:
                self._stored.add(call.question_id, call.key)
                if changed:
                    self._totals = self._totals.plus(call)

        entry = Entry(PUT_CALL, [call_values(call)], count, checksummed=True)
        await self._commits.write_async(entry)

    def get(self, key: str) -> Call | None:
        """Returns the stored call with this key; None if it is missing or failed.

        Raises:
            StorageError: If the row is damaged.
        """
        rows = self._rows("SELECT * FROM calls WHERE key = ?", key)
        if not rows:
            return None
        call = self._sound_call(rows[0])
        return call if call.error is None else None

    def get_for_question(self, question_id: str, key: str) -> Call | None:
        """Returns a call of this question like `get`; a missing one needs no disk read.

        Raises:
            StorageError: If a call of the question is damaged. The first lookup checks all of them,
                because a call with a damaged key would otherwise seem missing.
        """
        if not self._stored.holds(question_id, key):
            return None
        call = self.get(key)
        if call is None:  # found by its question, but not by its key
            raise self._damaged(question_id, "")
        return call

    def totals(self) -> Totals:
        """Returns the sums over the successful calls, including earlier attempts at the run."""
        return self._totals

    def count_calls(self, column: str, policy_digest: str | None = None) -> dict[str, int]:
        """Counts successful calls by a column, of all engines or of one."""
        counted = (
            f"SELECT {column}, count(*) FROM calls WHERE error IS NULL "
            f"AND policy_digest = coalesce(?, policy_digest) GROUP BY {column}"
        )
        return dict(self._rows(counted, policy_digest))

    def empty_replies(self) -> list[tuple[str, str, str | None, int]]:
        """Counts successful calls without a text, by role, finish reason and stop reason."""
        columns = "role, finish_reason, stop_reason"
        return self._rows(
            f"SELECT {columns}, count(*) FROM calls WHERE error IS NULL AND text = '' "
            f"GROUP BY {columns}"
        )

    def note_engine(self, policy_digest: str, capabilities: str) -> None:
        """Stores an engine's capabilities (JSON), which decide the form of its requests."""
        self._commits.write(Entry(PUT_ENGINE, [(policy_digest, capabilities)], checksummed=True))

    def engine_capabilities(self, policy_digest: str) -> str | None:
        """Returns the capabilities that `note_engine` stored; None if the run never opened the
        engine.

        Raises:
            StorageError: If the row is damaged.
        """
        rows = self._rows("SELECT * FROM engines WHERE policy_digest = ?", policy_digest)
        if rows and not sound(rows[0]):
            raise damaged(self.path, f"the engine {policy_digest}")
        return str(rows[0][1]) if rows else None

    def close(self) -> None:
        """Commits queued entries and releases the run. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._commits.close()
        self._reading.close()
        self._lock.release()

    def _keys_of(self, question_id: str) -> set[str]:
        rows = self._rows("SELECT * FROM calls WHERE question_id = ?", question_id)
        return {call.key for call in map(self._sound_call, rows) if call.error is None}

    def _sound_call(self, row: Sequence[Any]) -> Call:
        if not sound(row):
            values = dict(zip(CALL_COLUMNS, row, strict=False))
            raise self._damaged(values["question_id"], values["path"])
        return Call(*row[:-1])

    def _damaged(self, question_id: str, path: str) -> StorageError:
        subject = f"the call {path!r} of" if path else "a call of"
        return damaged(self.path, f"{subject} question {question_id!r}")

    def _rows(self, sql: str, *values: object) -> list[Any]:
        with self._read_lock:
            return read_rows(self._reading, self.path, sql, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def drop_damaged(path: Path, rows: Sequence[DamagedRow]) -> None:
    """Rebuilds a ledger without damaged rows, so that their calls are repeated.

    Tables are copied in the order of their rows, not repaired: an index may hold a damaged row
    under another key, and two rows may now have the same one.

    Raises:
        ConfigError: If another process holds the run (named by its pid).
        StorageError: If the file's structure is damaged, or it cannot be written.
    """
    statements = ["BEGIN IMMEDIATE", "DROP INDEX calls_by_question"]
    statements += [f"ALTER TABLE {table} RENAME TO old_{table}" for table in SEALED]
    statements += CREATE.split(";")
    for table in SEALED:
        numbers = [row.number for row in rows if row.table == table]
        columns = ", ".join(("rowid", *SEALED[table], "checksum"))
        statements += [
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM old_{table} NOT INDEXED "
            f"WHERE rowid NOT IN ({', '.join(map(str, numbers))}) ORDER BY rowid",
            f"DROP TABLE old_{table}",
        ]
    with RunLock(lock_path(path)):
        try:
            with closing(_connect(path)) as connection:
                for statement in (*statements, "COMMIT"):
                    connection.execute(statement)
                write_mark(path, connection)
        except sqlite3.Error as error:
            raise write_error("rebuild", path, error) from error


class StoredKeys:
    """The keys of the stored calls of the questions in progress, so that a new call reads no disk.

    All rows of a question are read and checked together, at its first lookup. A lookup per key
    would cost a new call more than storing it: the writing thread has just changed the pages that
    the lookup reads, and both threads wait for each other.
    """

    def __init__(self, read: Callable[[str], set[str]], questions: int = QUESTIONS) -> None:
        """Creates an empty cache.

        Args:
            read: Function that returns the keys of a question in the database.
            questions: Number of questions to keep; the oldest one is dropped first.
        """
        self._read = read
        self._questions = questions
        self._keys: dict[str, set[str]] = {}
        self._asking = threading.Lock()

    def holds(self, question_id: str, key: str) -> bool:
        """Returns whether a call of the question is stored."""
        with self._asking:
            keys = self._keys.get(question_id)
            return key in (self._load(question_id) if keys is None else keys)

    def add(self, question_id: str, key: str) -> None:
        """Records a call that is now on disk; any thread may do so."""
        if (keys := self._keys.get(question_id)) is not None:
            keys.add(key)

    def _load(self, question_id: str) -> set[str]:
        # Threads: lookups run on readers, `add` on the ledger's writer. Invariant: a key that is on
        # disk is in `_keys[question]` if that question has been loaded. The empty set is published
        # before the read, so a call committed during the read is either in the result set or added
        # by `add`.
        if len(self._keys) >= self._questions:
            del self._keys[next(iter(self._keys))]
        keys: set[str] = set()
        self._keys[question_id] = keys
        try:
            keys.update(self._read(question_id))
        except BaseException:
            del self._keys[question_id]
            raise
        return keys


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StorageError(
            f"{path}: this file system does not support SQLite's write-ahead log; use a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    if check_schema(connection, path):
        # Write the version with the tables, or a kill between them would leave an invalid ledger.
        connection.execute("BEGIN IMMEDIATE")
        for statement in CREATE.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
        connection.execute("COMMIT")
        sync(path.parent)  # SQLite syncs the content of a new database, not its name in the folder.
