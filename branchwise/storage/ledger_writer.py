"""Group commit: one thread writes all queued entries as one synced transaction.

A synced commit takes milliseconds for any number of rows. Callers queue their rows and wait
together, so each row becomes cheaper the more are in flight.
"""

import asyncio
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from branchwise.base import StorageError, replace_surrogates

from .ledger_mark import move_away, write_mark
from .ledger_rows import checksum

MAX_BATCH = 4096
"""Maximum entries per transaction."""

# A damaged schema is a logic error to SQLite: "no such column".
_DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_SCHEMA,
)
_Waiter = Future[None] | asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One statement for many rows of values; they are stored together or not at all.

    After the commit, the writing thread calls `on_commit` (if given) with the number of changed
    rows, then wakes the waiting caller. A `checksummed` row gets the checksum of its stored values
    as its last value.
    """

    sql: str
    rows: Sequence[Sequence[object]]
    on_commit: Callable[[int], None] | None = None
    checksummed: bool = False


def write_error(doing: str, path: Path, fault: Exception) -> StorageError:
    """Returns the error for a failed attempt to open, read or write the database at `path`."""
    # Python gives no code if a text is not UTF-8.
    coded = sqlite3.SQLITE_ERROR if isinstance(fault, sqlite3.OperationalError) else 0
    code = getattr(fault, "sqlite_errorcode", coded) & 0xFF  # without SQLite's extended code
    if code in _DAMAGE:
        return StorageError(
            f"cannot {doing} {path}: {fault}. Restore it from a copy of the run, or "
            f"{move_away(path)}"
        )
    disk = code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return StorageError(
        f"cannot {doing} {path}: {fault}; earlier rows are safe. "
        f"{'Free disk space or fix the disk' if disk else 'Fix this'}, then rerun the same command "
        "to resume"
    )


class LedgerWriter:
    """The only writer of a database; commits entries in the order of their arrival.

    Takes over `connection`, which must be in autocommit mode and usable from any thread.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._queue: SimpleQueue[tuple[Entry, _Waiter] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def write(self, entry: Entry) -> None:
        """Stores the entry and returns once it is on disk.

        Raises:
            StorageError: If the database could not be written; nothing of this entry was.
        """
        waiter: Future[None] = Future()
        self._enqueue(entry, waiter)
        waiter.result()

    async def write_async(self, entry: Entry) -> None:
        """Stores the entry like `write`, for coroutines. Cancelling does not undo the write.

        Raises:
            StorageError: See `write`.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._enqueue(entry, waiter)
        await waiter

    def close(self) -> None:
        """Commits queued entries, ends the thread and closes the connection."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _enqueue(self, entry: Entry, waiter: _Waiter) -> None:
        # Hold the gate, or an entry could be queued after the closing mark and wait forever.
        with self._gate:
            if self._closed:
                raise StorageError(f"{self._path} is closed. Reopen it before writing")
            self._queue.put((entry, waiter))

    def _run(self) -> None:
        # Entries that arrive during a sync form the next batch. So batches grow with the load, and
        # a single row never waits for a timer.
        while True:
            batch = [self._queue.get()]
            with suppress(Empty):
                while len(batch) < MAX_BATCH:
                    batch.append(self._queue.get_nowait())
            entries = [item for item in batch if item is not None]
            if entries:
                self._commit(entries)
            if len(entries) < len(batch):
                return

    def _commit(self, batch: Sequence[tuple[Entry, _Waiter]]) -> None:
        """Commits a batch as one transaction; if that fails, commits each entry separately."""
        try:
            changed = self._transaction([entry for entry, _ in batch])
        except Exception as fault:
            if len(batch) > 1:  # other callers' paid replies must not be lost with a faulty entry
                for single in batch:
                    self._commit([single])
                return
            error = write_error("write", self._path, fault)
            error.__cause__ = fault
            _settle([waiter for _, waiter in batch], error)
            return
        # Before the callers wake: their next lookup has to find the row.
        for (entry, _), count in zip(batch, changed, strict=True):
            if entry.on_commit is not None:
                entry.on_commit(count)
        _settle([waiter for _, waiter in batch], None)

    def _transaction(self, entries: Sequence[Entry]) -> list[int]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            changed = [
                sum(self._connection.execute(e.sql, _bindable(e, row)).rowcount for row in e.rows)
                for e in entries
            ]
            self._connection.execute("COMMIT")
        except BaseException:
            # On a full disk SQLite has already rolled back, which raises an error here.
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
        write_mark(self._path, self._connection)
        return changed


def _bindable(entry: Entry, values: Sequence[object]) -> list[object]:
    bound = [replace_surrogates(value) if isinstance(value, str) else value for value in values]
    if entry.checksummed:
        bound.append(checksum(bound))
    return bound


def _settle(waiters: Sequence[_Waiter], error: StorageError | None) -> None:
    """Resolves all waiters; wakes each event loop once, not once per row."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            by_loop[waiter.get_loop()].append(waiter)
        else:
            _resolve([waiter], error)
    for loop, futures in by_loop.items():
        # On a closed event loop no caller is waiting; the rows are stored anyway.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, futures, error)


def _resolve(waiters: Sequence[_Waiter], error: StorageError | None) -> None:
    for waiter in waiters:
        if waiter.done():  # cancelled in the meantime
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
