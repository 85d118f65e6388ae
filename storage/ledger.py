"""The ledger of a run: every model call, stored before its result is used, and every question.

SQLite in WAL mode with `synchronous=FULL`: what `put` has returned from survives a kill and a
power cut. One thread writes (group commit, `storage.groupcommit`); reads have a connection of
their own and see committed rows only. One process at a time holds a run (`storage.lock`); the
workers that it starts write their calls to the same database (`shared`).
"""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from storage.begun import BEGUN, UNSEALED
from storage.calls import (
    COUNT_MODELS,
    CREATE,
    GET_CALL,
    GET_ENGINE,
    GET_FACT,
    GET_KEYS,
    IS_USED,
    OWE_QUESTION,
    PUT_CALL,
    PUT_ENGINE,
    PUT_FACT,
    PUT_QUESTION,
    SUM_CALLS,
    SUM_GENERATED,
    Call,
    QuestionRow,
    QuestionStatus,
    Totals,
    call_values,
    question_values,
)
from storage.errors import StorageError
from storage.groupcommit import Entry, GroupCommit, refused
from storage.lock import RunLock, lock_path
from storage.stored_keys import StoredKeys

LEDGER_VERSION = 2
"""`PRAGMA user_version` of the database."""
BUSY_S = 60.0
"""How long a write waits for those of other processes, which take milliseconds each."""


class Ledger:
    """An open ledger (see module); use it in a `with` or `async with` block.

    Attributes:
        path: the database; beside it lie SQLite's own files and `<name>.lock`.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Open or create the ledger, and hold the run until `close`.

        Args:
            path: of the database.
            shared: for a worker whose parent holds the run: takes no lock, and its totals begin
                at zero.

        Raises:
            ConfigError: another process holds the run (named by its pid).
            StorageError: the file is damaged, no ledger, or of a newer version.
        """
        self.path = path
        _make_folder(path.parent)
        self._lock = None if shared else RunLock(lock_path(path))
        try:
            writing = _connect(path)
            self._reading = _connect(path)
            self._totals = Totals()
            if not shared:
                self._totals = Totals(*self._reading.execute(SUM_CALLS).fetchone())
        except BaseException as error:
            self._unlock()
            if isinstance(error, sqlite3.Error):
                raise refused("open", path, error) from error
            raise
        self._reads = threading.Lock()
        self._stored = StoredKeys(self._keys_of)
        self._commits = GroupCommit(writing, path)
        self._closed = False

    async def put(self, call: Call) -> None:
        """Store a call; returns once it is on disk. A reply that is there already is kept.

        Raises:
            StorageError: it could not be stored (full disk); its result must not be used.
        """
        await self._commits.written(Entry(PUT_CALL, [call_values(call)], self._counted(call)))

    def get(self, key: str) -> Call | None:
        """The stored call with this key; null if there is none, or only an error."""
        rows = self._rows(GET_CALL, (key,))
        return Call(*rows[0]) if rows else None

    def recall(self, question_id: str, key: str) -> Call | None:
        """`get` for a call of this question; one that is not stored costs no look at the disk.

        A question is worked on by one process at a time: of calls that another one stored since
        this question was first asked for here, nothing is known.
        """
        return self.get(key) if self._stored.holds(question_id, key) else None

    def totals(self) -> Totals:
        """Sums over the calls that succeeded, earlier attempts at the run included."""
        return self._totals

    def models(self, policy_digest: str) -> dict[str, int]:
        """Who answered an engine's calls by its own account, and how often."""
        return dict(self._rows(COUNT_MODELS, (policy_digest,)))

    def generated(self, *roots: str) -> Counter[str]:
        """Tokens that calls generated, by question, of those whose path begins with a root."""
        found: Counter[str] = Counter()
        for root in roots:
            found.update(dict(self._rows(SUM_GENERATED, (root,))))
        return found

    def note_engine(self, policy_digest: str, capabilities: str) -> None:
        """Keep what an engine can do (JSON), which decides how requests to it look."""
        self._commits.write(Entry(PUT_ENGINE, [(policy_digest, capabilities)]))

    def engine(self, policy_digest: str) -> str | None:
        """What `note_engine` kept; null for an engine that the run never opened."""
        rows = self._rows(GET_ENGINE, (policy_digest,))
        return str(rows[0][0]) if rows else None

    def begin(self, begun: str) -> None:
        """Keep the digest of what the run was begun with; one that is there stays."""
        self._commits.write(Entry(PUT_FACT, [(BEGUN, begun)]))

    @property
    def begun(self) -> str | None:
        """What `begin` kept; `UNSEALED` where rows are and it is not; null in a new ledger."""
        found = self._rows(GET_FACT, (BEGUN,))
        if found:
            return str(found[0][0])
        return UNSEALED if self._rows(IS_USED)[0][0] else None

    def owe(self, question_ids: Iterable[str]) -> None:
        """Note questions as owed, where nothing is noted yet; on disk when it returns."""
        self._commits.write(Entry(OWE_QUESTION, [(identity,) for identity in question_ids]))

    def set_question(
        self,
        question_id: str,
        status: QuestionStatus,
        detail: str | None = None,
        part: str | None = None,
    ) -> None:
        """Note where a question stands; on disk when it returns."""
        self.set_questions([QuestionRow(question_id, status, detail, part)])

    def set_questions(self, rows: Iterable[QuestionRow]) -> None:
        """`set_question` for many at once, all or none."""
        self._commits.write(Entry(PUT_QUESTION, [question_values(row) for row in rows]))

    def question_status(self) -> dict[str, QuestionStatus]:
        """Status of every question noted, by id."""
        return dict(self._rows("SELECT question_id, status FROM questions ORDER BY rowid"))

    def questions(self) -> list[QuestionRow]:
        """Every question noted, in the order it was first noted."""
        sql = "SELECT question_id, status, detail, part FROM questions ORDER BY rowid"
        return [QuestionRow(*row) for row in self._rows(sql)]

    def counts(self) -> dict[QuestionStatus, int]:
        """Number of questions by status."""
        counted = dict(self._rows("SELECT status, count(*) FROM questions GROUP BY status"))
        return {"owed": 0, "done": 0, "failed": 0, **counted}

    def close(self) -> None:
        """Commit what is queued and let other processes in. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self._commits.close()
        self._reading.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _counted(self, call: Call) -> Any:
        def count(changed: int) -> None:
            if call.error is None:
                self._stored.add(call.question_id, call.key)
                if changed:
                    self._totals = self._totals.plus(call)

        return count

    def _keys_of(self, question_id: str) -> list[str]:
        return [key for (key,) in self._rows(GET_KEYS, (question_id,))]

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        try:
            # Fetched at once: an unfinished read would keep the write-ahead log from shrinking.
            with self._reads:
                return self._reading.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise refused("read", self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not in another thread: a cancelled task must still leave a closed ledger behind.
        self.close()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error


def _connect(path: Path) -> sqlite3.Connection:
    """A durable autocommit connection; tables are created where they are missing."""
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
        raise StorageError(f"{path}: this file system has no write-ahead log; use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > LEDGER_VERSION:
        raise StorageError(
            f"{path}: ledger version {version}, this Branchwise reads up to {LEDGER_VERSION}: "
            "install a newer version"
        )
    if version < LEDGER_VERSION:
        connection.executescript(f"BEGIN IMMEDIATE; {CREATE} COMMIT;")
        connection.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """SQLite syncs the content of a new database, not its name in the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
