"""`verify`: damaged parts are printed, and rebuilt without calls."""

import hashlib
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from loopback import serving
from tiny_dataset import policy, recipe

from pipelines.cli import parser, run_stage
from storage.ledger import Ledger
from storage.ledger_mark import mark_path
from storage.ledger_rows import CALL_COLUMNS, checksum
from storage.manifest import load_manifest, verify_manifest
from storage.parts import question_ids

pytestmark = pytest.mark.usefixtures("own_cache")


def branchwise(stage: str, run: Path, *more: str) -> int:
    return run_stage(parser().parse_args([stage, "--run", str(run), *more]))


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Path, FakeEndpoint]:
    """Finished run, with its endpoint closed."""
    run = tmp_path / "run"
    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("annotate", run, "--config", str(config)) == 0
    return run, endpoint


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_verify_does_not_change_an_intact_run(finished: tuple[Path, FakeEndpoint]) -> None:
    run, _ = finished
    before = (run / "manifest.json").read_bytes()
    assert branchwise("verify", run) == 0
    assert (run / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("part", ["trees/part-00000", "pairs/part-00000", "questions"])
@pytest.mark.parametrize("damage", ["torn", "gone", "other"])
def test_a_damaged_part_is_printed_and_rebuilt_byte_for_byte(
    finished: tuple[Path, FakeEndpoint],
    part: str,
    damage: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, endpoint = finished
    path, made = run / f"{part}.parquet", len(endpoint.requests)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "torn" else whole[::-1])
    assert branchwise("verify", run, "--dry-run") == 1
    assert f"{part}.parquet" in capsys.readouterr().out
    assert not path.exists() or path.read_bytes() != whole
    assert branchwise("verify", run) == 0
    assert hashlib.sha256(whole).hexdigest() == sha(path)
    assert verify_manifest(run) == []
    assert len(endpoint.requests) == made
    assert branchwise("verify", run) == 0


def change_token_counts(ledger: Path, question: str) -> None:
    """Changes the token counts of a question in the ledger, with valid checksums."""
    columns = ", ".join(CALL_COLUMNS)
    with closing(sqlite3.connect(ledger)) as opened, opened:
        opened.create_function("sealed", -1, lambda *values: checksum(values))
        opened.execute(
            "UPDATE calls SET output_tokens = output_tokens + 1 WHERE question_id = ?", (question,)
        )
        opened.execute(f"UPDATE calls SET checksum = sealed({columns})")


def test_a_rebuilt_part_with_another_hash_changes_no_files(
    finished: tuple[Path, FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = finished
    path = run / "trees" / "part-00000.parquet"
    committed = sha(path)
    path.unlink()
    change_token_counts(run / "ledger.sqlite", "q3")
    ledger = (run / "ledger.sqlite").read_bytes()
    before = {file: file.read_bytes() for file in run.rglob("*.parquet")}
    manifest = (run / "manifest.json").read_bytes()
    assert branchwise("verify", run) == 1
    told = capsys.readouterr().out
    assert "trees/part-00000.parquet: rebuilt, it has the sha256" in told
    assert committed in told
    assert "left as it is" in told
    assert {file: file.read_bytes() for file in run.rglob("*.parquet")} == before
    assert (run / "manifest.json").read_bytes() == manifest
    assert (run / "ledger.sqlite").read_bytes() == ledger
    with Ledger(run / "ledger.sqlite") as opened:
        assert Counter(row.status for row in opened.questions()) == {"done": 6}


def test_a_damaged_ledger_of_an_intact_run_is_reported(
    finished: tuple[Path, FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = finished
    with closing(sqlite3.connect(run / "ledger.sqlite")) as opened, opened:
        opened.execute("UPDATE calls SET output_tokens = 99 WHERE question_id = 'q3'")
        (rows,) = opened.execute("SELECT count(*) FROM calls WHERE question_id = 'q3'").fetchone()
    capsys.readouterr()
    assert branchwise("verify", run, "--json") == 1
    told = capsys.readouterr()
    assert json.loads(told.out.splitlines()[-1])["ledger"]["damaged"] == rows
    assert "('q3', 'tree/" in told.err
    assert "Restore the ledger from a copy" in told.err


def test_questions_of_a_part_become_pending_if_the_ledger_lacks_calls(
    tmp_path: Path, finished: tuple[Path, FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = finished
    (run / "trees" / "part-00000.parquet").unlink()
    with Ledger(run / "ledger.sqlite") as ledger:
        ledger._reading.execute("DELETE FROM calls WHERE question_id = 'q3'")
    mark_path(run / "ledger.sqlite").unlink()
    assert branchwise("verify", run) == 1
    told = capsys.readouterr().out
    assert "question q3 is not in the ledger" in told
    assert "branchwise annotate" in told
    assert question_ids(run, "trees") == set()
    with Ledger(run / "ledger.sqlite") as ledger:
        assert Counter(row.status for row in ledger.questions()) == {"pending": 6}


def test_verify_names_the_stage_that_rebuilds_a_damaged_part(
    finished: tuple[Path, FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = finished
    for label in ("same", "intact"):
        assert branchwise("relabel", run, "--label", label) == 0
    (run / "relabelled" / "same" / "pairs" / "part-00000.parquet").write_bytes(b"PAR1")
    assert branchwise("verify", run) == 1
    told = capsys.readouterr().out
    assert "relabel --label same` with the settings in relabelled/same/labelling.yaml" in told
    assert verify_manifest(run) == []
    # Nothing of the relabelling stays, so that no training takes the other pairs for all.
    tables = {part.table for part in load_manifest(run).parts}
    assert {name for name in tables if name.startswith("relabelled/")} == {
        "relabelled/intact/labels",
        "relabelled/intact/pairs",
    }


def damage_a_state(run: Path) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as opened, opened:
        opened.execute("UPDATE questions SET status = 'failed' WHERE question_id = 'q3'")


def states(run: Path) -> Counter[str]:
    with Ledger(run / "ledger.sqlite") as ledger:
        return Counter(row.status for row in ledger.questions())


@pytest.mark.parametrize("stage", ["verify", "annotate"])
def test_a_damaged_question_state_is_repaired(
    finished: tuple[Path, FakeEndpoint], stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = finished
    damage_a_state(run)
    branchwise(stage, run)
    assert "question states rebuilt: 1" in capsys.readouterr().out
    assert states(run) == {"done": 6}
    assert branchwise("verify", run) == 0


def test_a_damaged_state_and_part_are_rebuilt_without_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with serving(policy) as endpoint:
        config = str(recipe(tmp_path, endpoint.base_url))
        assert branchwise("annotate", run, "--config", config) == 0
        made = len(endpoint.requests)
        damage_a_state(run)
        (run / "trees" / "part-00000.parquet").write_bytes(b"PAR1")
        assert branchwise("verify", run) == 1
        assert "rerun `branchwise annotate`" in capsys.readouterr().out
        assert branchwise("annotate", run, "--config", config) == 0
        assert len(endpoint.requests) == made
    assert states(run) == {"done": 6}
    assert branchwise("verify", run) == 0


def test_a_missing_ledger_is_an_error_before_any_call(
    finished: tuple[Path, FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, endpoint = finished
    made = len(endpoint.requests)
    for path in run.glob("ledger.sqlite*"):
        path.unlink()
    for stage in ("verify", "annotate"):
        capsys.readouterr()
        assert branchwise(stage, run) == 1
        told = capsys.readouterr()
        assert "holds 0 calls" in told.out + told.err
    assert len(endpoint.requests) == made
