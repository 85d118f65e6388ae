"""The minimum number of calls that a ledger has stored, in a file next to it.

A missing ledger looks like a new one, and SQLite forgets what follows the damage in a write-ahead
log. Without this file, both would silently repeat paid calls. Every commit writes the
highest row number of `calls` into it, without a sync: it survives a kill, and after a power cut it
may be lower, so that less is noticed.
"""

import sqlite3
from contextlib import suppress
from pathlib import Path

from branchwise.base import read_inside


def mark_path(ledger: Path) -> Path:
    """Returns the path of a ledger's mark."""
    return ledger.with_suffix(".stored")


def move_away(ledger: Path) -> str:
    """Returns the advice to begin a new ledger."""
    mark = mark_path(ledger).name
    return f"move {ledger.name}* and {mark} away; its calls will then be repeated and paid for"


def write_mark(ledger: Path, connection: sqlite3.Connection) -> None:
    """Writes the mark of a ledger; if that fails, the old one stays."""
    path = mark_path(ledger)
    # The rows are committed already, so no fault here may look like theirs. Overwritten in place:
    # so few bytes are never torn, and a rename per commit would cost more.
    with suppress(OSError, sqlite3.Error):
        line = f"{_newest(connection):020d}\n".encode()
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(line)


def lost_calls(ledger: Path, connection: sqlite3.Connection | None) -> str | None:
    """Returns what a ledger lacks and what to do; None if it holds as many calls as were stored.

    Args:
        connection: The open ledger; None if there is none.
    """
    path = mark_path(ledger)
    try:
        stored = int(read_inside(path.parent, path.name, 64))
    except (OSError, ValueError):
        return None
    held = 0 if connection is None else _newest(connection)
    if held >= stored:
        return None
    return (
        f"{ledger}: holds {held:,} calls, but at least {stored:,} were stored: it was removed, "
        "replaced or damaged. Restore it from a copy of the run. To pay for the missing calls "
        f"again, remove {path}"
    )


def _newest(connection: sqlite3.Connection) -> int:
    """Returns the highest row number; rows are only added, or removed by `Ledger.drop`."""
    (newest,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM calls").fetchone()
    return int(newest)
