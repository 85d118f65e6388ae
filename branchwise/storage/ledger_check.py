"""Reads the rows of a ledger, and finds the damaged ones."""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.base import StorageError

from .ledger_mark import lost_calls, move_away
from .ledger_rows import CREATE, SEALED, sound
from .ledger_writer import write_error

LEDGER_VERSION = 6
"""`PRAGMA user_version` of the database."""
REMEDY = (
    "Restore the ledger from a copy of the run. Without a copy, `branchwise verify --run DIR "
    "--drop-damaged` removes these rows; the next `branchwise annotate` or `branchwise eval` "
    "repeats and pays for the calls it needs"
)
"""Advice for a damaged ledger."""
_MOST_FAULTS = 20


def damaged(path: Path, row: str) -> StorageError:
    """Returns the error for a damaged row, which was neither used nor paid for twice."""
    return StorageError(
        f"{path}: {row} is damaged (checksum mismatch). It was not used, and no call was "
        f"repeated. {REMEDY}"
    )


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """A row whose checksum does not match; `names` are its identifying values."""

    table: str
    number: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"row {self.number} of {self.table} ({', '.join(map(repr, self.names))})"


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of checking all rows of a ledger.

    Attributes:
        damaged: Rows that differ from their checksum.
        faults: SQLite's messages about damage to the file's structure, including indexes.
        lost: What the ledger lacks (`storage.ledger_mark.lost_calls`); None if nothing.
    """

    rows: int = 0
    damaged: tuple[DamagedRow, ...] = ()
    faults: tuple[str, ...] = ()
    lost: str | None = None

    @property
    def whole(self) -> bool:
        return not (self.damaged or self.faults or self.lost)


def check(path: Path) -> Checked:
    """Checks every row and index of a ledger; changes nothing, and needs no lock.

    A missing ledger is whole if no calls were stored: runs of imported pairs have none. Takes
    about 8 µs per row.

    Raises:
        StorageError: If the file cannot be read as a ledger of this version.
    """
    if not path.exists():
        return Checked(lost=lost_calls(path, None))
    try:
        with closing(sqlite3.connect(read_only_uri(path, locked=True), uri=True)) as reading:
            if check_schema(reading, path):
                return Checked(lost=lost_calls(path, None))
            counts = [damaged_rows(reading, table) for table in SEALED]
            lost = lost_calls(path, reading)
            faults = reading.execute(f"PRAGMA integrity_check({_MOST_FAULTS})").fetchall()
    except sqlite3.Error as error:
        raise write_error("read", path, error) from error
    return Checked(
        sum(rows for rows, _ in counts),
        tuple(row for _, bad in counts for row in bad),
        tuple(fault for (fault,) in faults if fault != "ok"),
        lost,
    )


def read_rows(
    connection: sqlite3.Connection, path: Path, sql: str, values: tuple[object, ...] = ()
) -> list[Any]:
    """Returns all rows of a query at once: an unfinished read would keep the log from shrinking.

    Raises:
        StorageError: If the database cannot be read.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        raise write_error("read", path, error) from error


def check_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Returns whether a database is new, so that its tables have to be created.

    Raises:
        StorageError: If it is a ledger of another version, not a ledger, or its schema is damaged,
            which SQLite would notice only when a row is written: after a call was paid for.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == LEDGER_VERSION:
        with closing(sqlite3.connect(":memory:")) as undamaged:
            undamaged.executescript(CREATE)
            if _schema(connection) != _schema(undamaged):
                raise StorageError(
                    f"{path}: its tables are not those of a ledger, so it is damaged. Restore it "
                    f"from a copy of the run, or {move_away(path)}"
                )
        return False
    if version or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StorageError(
            f"{path}: ledger version {version}, this Branchwise reads {LEDGER_VERSION}: use the "
            f"version that wrote it, or {move_away(path)}"
        )
    return True


def _schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    ).fetchall()


def read_only_uri(path: Path, *, locked: bool = False) -> str:
    """Returns the URI of a read-only database.

    Without a write-ahead log nobody writes, and `immutable` keeps SQLite from creating one. With
    one, `immutable` would hide the calls in the log.

    Args:
        locked: Whether to read correctly even if another process starts to write, which needs
            SQLite's locks; a read-only folder has none, because nobody can write there.
    """
    shared = os.path.lexists(f"{path}-wal") or (locked and os.access(path.parent, os.W_OK))
    fixed = "" if shared else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{fixed}"


def damaged_rows(connection: sqlite3.Connection, table: str) -> tuple[int, list[DamagedRow]]:
    """Returns the number of rows of a table, and the damaged ones.

    Raises:
        sqlite3.Error: If the table cannot be read.
    """
    bad, count = [], 0
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        for number, *row in connection.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid"):
            count += 1
            if not sound(row):
                values = dict(zip(SEALED[table], row, strict=False))
                names = [values[n] for n in ("question_id", "path", "policy_digest") if n in values]
                bad.append(DamagedRow(table, number, tuple(map(str, names))))
    finally:
        connection.text_factory = str
    return count, bad
