"""The wall clock is only recorded: no row depends on it, even if it jumps."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from durable import World, rows_of
from seams import Seam

pytestmark = pytest.mark.failure


def test_a_jumping_wall_clock_changes_no_rows(world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hours = ("--set", "limits.max_hours=1")
    done = world.annotate(run, *hours, seam=Seam("clock"))
    assert done.code == 0, done.said
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        noted = [at for (at,) in ledger.execute("SELECT at FROM calls ORDER BY rowid")]
    assert max(noted)[:4] > min(noted)[:4], "the clock must have jumped by months"
    for table in ("pairs", "trees"):
        assert rows_of(run, table) == rows_of(world.whole, table)
