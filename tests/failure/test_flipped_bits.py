"""Flipped bits in a ledger's file: a replay restores the committed rows or reports the damage.

Without checksums, a flipped bit in a stored reply and a removed part gave different rows in seven
of ten cases.
"""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from durable import World, rows_of, stored_seeds
from stages import Ended

from branchwise.storage.manifest import verify_manifest

pytestmark = pytest.mark.failure

LOST = "trees/part-00001.parquet"
FLIPS = 4


@pytest.fixture
def run(run: Path) -> Path:
    """A copy of the finished run with one part removed."""
    (run / LOST).unlink()
    return run


def replies(run: Path) -> list[bytes]:
    """Returns the stored replies as raw bytes."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        return [text for (text,) in ledger.execute("SELECT CAST(text AS BLOB) FROM calls")]


def flip(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def flip_a_reply(run: Path, draw: random.Random) -> None:
    """Flips one bit of one stored reply."""
    ledger, stored = run / "ledger.sqlite", replies(run)
    content = ledger.read_bytes()
    reply = draw.choice(sorted(set(stored)))
    starts = [i for i in range(len(content)) if content.startswith(reply, i)]
    place, bit = draw.choice(starts) + draw.randrange(len(reply)), draw.randrange(8)
    flip(ledger, place, bit)
    if replies(run) == stored:  # SQLite no longer uses these bytes
        flip(ledger, place, bit)
        flip_a_reply(run, draw)


def files(run: Path) -> dict[str, bytes]:
    """Returns all files that must not change, so none of SQLite's temporary ones."""
    kept = [path for path in run.rglob("*") if path.is_file() and "ledger" not in path.name]
    ledger = (run / "ledger.sqlite").read_bytes()
    return {str(path): path.read_bytes() for path in kept} | {"ledger": ledger}


def without_calls(world: World, stage: str, run: Path, *more: object) -> Ended:
    """Runs a stage, which must make no call."""
    before = len(world.seeds)
    ended = world.stages.run(stage, "--run", run, *more)
    assert "Traceback" not in ended.said
    assert len(world.seeds) == before
    return ended


@pytest.mark.parametrize("number", range(FLIPS))
def test_a_flipped_bit_in_a_stored_reply_is_reported_as_damage(
    number: int, world: World, run: Path
) -> None:
    ledger = run / "ledger.sqlite"
    flip_a_reply(run, random.Random(number))
    before = files(run)
    ended = without_calls(world, "verify", run)
    assert ended.code == 1, ended.said
    assert f"{ledger}: damaged: row " in ended.said
    assert "--drop-damaged" in ended.said
    assert files(run) == before, "nothing may change until the ledger is repaired"


@pytest.mark.parametrize("number", range(FLIPS))
def test_a_bit_flipped_anywhere_in_the_ledger_never_changes_rows(
    number: int, world: World, run: Path
) -> None:
    draw, ledger = random.Random(100 + number), run / "ledger.sqlite"
    flip(ledger, draw.randrange(ledger.stat().st_size), draw.randrange(8))
    ended = without_calls(world, "verify", run)
    assert ended.code == 1, "a part is missing"
    replayed = without_calls(world, "annotate", run, "--replay")
    if "is damaged" in ended.said or "damaged: " in ended.said:
        assert replayed.code == 1, replayed.said
        assert str(ledger) in ended.said
    if replayed.code == 0:
        assert verify_manifest(run) == []
        for table in ("pairs", "trees", "questions"):
            assert rows_of(run, table) == rows_of(world.whole, table)


def test_only_the_dropped_call_is_repeated(world: World, run: Path) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger, ledger:
        lost = pq.read_table(world.whole / LOST)["question_id"][0].as_py()
        (reply,) = ledger.execute(
            "SELECT key FROM calls WHERE question_id = ? LIMIT 1", (lost,)
        ).fetchone()
        ledger.execute("UPDATE calls SET text = 'x' WHERE key = ?", (reply,))
    assert without_calls(world, "verify", run).code == 1
    dry = without_calls(world, "verify", run, "--dry-run", "--drop-damaged")
    assert dry.code == 1
    assert len(stored_seeds(run)) == len(stored_seeds(world.whole))
    dropped = without_calls(world, "verify", run, "--drop-damaged")
    assert dropped.code == 1, dropped.said
    assert "1 damaged rows removed" in dropped.said
    assert f"{LOST}: left the manifest" in dropped.said
    before = len(world.seeds)
    assert world.annotate(run).code == 0
    assert len(world.seeds) == before + 1, "the endpoint honours seeds, so one call is missing"
    assert without_calls(world, "verify", run).code == 0


def test_annotate_neither_uses_nor_repeats_a_damaged_call(world: World, run: Path) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE calls SET key = 'z' || substr(key, 2) WHERE rowid = 3")
    (run / "manifest.json").unlink()  # without it, all questions are pending
    before = len(world.seeds)
    ended = world.annotate(run)
    assert ended.code == 1, ended.said
    assert "is damaged (checksum mismatch)" in ended.said
    assert "question 'q" in ended.said
    assert len(world.seeds) == before
