"""The digest that ties a manifest and a ledger to their run.

`runs.seal` computes the digest; this module reads it without opening the ledger for work.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from storage.ledger_rows import GET_FACT, IS_USED

BEGUN = "begun"
"""Name of the ledger's fact that holds the digest."""
UNSEALED = "no seal"
"""Value for a file that holds rows but no digest."""


def begun_of_ledger(path: Path) -> str | None:
    """Returns the digest that a ledger stores, or `UNSEALED`.

    Returns None if the ledger is missing, empty or unreadable; opening it for work raises the
    reason. Takes no lock.
    """
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as ledger:
            found = ledger.execute(GET_FACT, (BEGUN,)).fetchone()
            if found is None and ledger.execute(IS_USED).fetchone()[0]:
                return UNSEALED
    except sqlite3.Error:
        return None
    return None if found is None else str(found[0])
