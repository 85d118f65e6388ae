"""Damaged files of a finished run: each reader names the file and a remedy that works."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from durable import World, rows_of, stored_seeds
from stages import Ended

from branchwise.storage.manifest import verify_manifest

pytestmark = pytest.mark.failure

READERS = {
    "trees/part-*.parquet": ("inspect", "relabel", "annotate"),
    "pairs/part-*.parquet": ("inspect", "train-dpo", "export-pairs"),
    "questions.parquet": ("inspect", "relabel"),
}


def corrupt(path: Path) -> None:
    """Flips one bit; parquet itself may read another value without an error."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    """Replaces the file by an unrelated table with the same number of rows."""
    rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else 1
    pq.write_table(pa.table({"name": ["x"] * rows}), path)


def missing(path: Path) -> None:
    path.unlink()


Damage = Callable[[Path], None]


def run_without_calls(world: World, stage: str, run: Path, tmp_path: Path) -> Ended:
    """Runs a stage on the run; it must make no call."""
    more = {
        "annotate": ("--config", world.recipe),
        "export-pairs": ("--file", tmp_path / "pairs.json"),
    }
    before = len(world.seeds)
    ended = world.stages.run(stage, "--run", run, *more.get(stage, ()))
    assert "Traceback" not in ended.said
    assert len(world.seeds) == before
    return ended


def assert_rows_unchanged(world: World, run: Path) -> None:
    assert verify_manifest(run) == []
    for table in ("pairs", "trees", "questions"):
        assert rows_of(run, table) == rows_of(world.whole, table)


@pytest.mark.parametrize("damage", [corrupt, truncated, empty, foreign, missing])
@pytest.mark.parametrize("pattern", READERS)
def test_a_damaged_part_is_named_and_annotate_restores_its_rows(
    pattern: str, damage: Damage, world: World, run: Path, tmp_path: Path
) -> None:
    # The last one: which questions share a part varies, and questions without pairs give none.
    part = max(run.glob(pattern))
    damage(part)
    for stage in READERS[pattern]:
        refused = run_without_calls(world, stage, run, tmp_path)
        assert refused.code == 1, refused.said
        assert str(part) in refused.said
        assert "branchwise verify" in refused.said
    verified = run_without_calls(world, "verify", run, tmp_path)
    assert verified.code == 1, verified.said
    assert str(part) in verified.said
    assert "rerun `branchwise annotate`" in verified.said
    assert run_without_calls(world, "annotate", run, tmp_path).code == 0
    assert_rows_unchanged(world, run)


@pytest.mark.parametrize("damage", [corrupt, truncated, empty, foreign])
def test_a_damaged_manifest_is_named_and_annotate_rebuilds_it(
    damage: Damage, world: World, run: Path, tmp_path: Path
) -> None:
    damage(run / "manifest.json")
    for stage in ("inspect", "relabel", "train-dpo", "annotate"):
        refused = run_without_calls(world, stage, run, tmp_path)
        assert refused.code == 1, refused.said
        assert str(run / "manifest.json") in refused.said
        assert "remove it" in refused.said
    (run / "manifest.json").unlink()
    assert run_without_calls(world, "annotate", run, tmp_path).code == 0
    assert_rows_unchanged(world, run)


def middle(path: Path) -> None:
    """Overwrites a page of the table of calls with zeros."""
    content = bytearray(path.read_bytes())
    content[7 * 4096 : 8 * 4096] = bytes(4096)
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncated, foreign, middle])
def test_a_damaged_ledger_is_named_and_annotate_rebuilds_it(
    damage: Damage, world: World, run: Path, tmp_path: Path
) -> None:
    damage(run / "ledger.sqlite")
    (run / "manifest.json").unlink()  # without it, all questions are pending
    refused = run_without_calls(world, "annotate", run, tmp_path)
    assert refused.code == 1, refused.said
    assert f"{run}/ledger.sqlite: " in refused.said
    assert "move ledger.sqlite* and ledger.stored away" in refused.said
    for file in (*run.glob("ledger.sqlite*"), run / "ledger.stored"):
        file.unlink()
    before = len(world.seeds)
    assert world.annotate(run).code == 0
    assert set(world.seeds[before:]) == stored_seeds(run) == stored_seeds(world.whole)
    assert_rows_unchanged(world, run)
