"""`verify` and `annotate --replay`: damaged parts are removed, and rebuilt without calls."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from loopback import serving
from tiny_dataset import policy, recipe

from branchwise.cli.command_line import parser, run_stage
from branchwise.storage.ledger import Ledger
from branchwise.storage.ledger_mark import mark_path
from branchwise.storage.manifest import load_manifest, verify_manifest
from branchwise.storage.parts import question_ids

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


def test_verify_does_not_change_an_intact_run(finished: tuple[Path, FakeEndpoint]) -> None:
    run, _ = finished
    before = (run / "manifest.json").read_bytes()
    assert branchwise("verify", run) == 0
    assert (run / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("part", ["trees/part-00000", "pairs/part-00000", "questions"])
@pytest.mark.parametrize("damage", ["torn", "gone", "other"])
def test_a_damaged_part_is_printed_and_replayed_without_its_endpoint(
    finished: tuple[Path, FakeEndpoint],
    part: str,
    damage: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, endpoint = finished
    path, made = run / f"{part}.parquet", len(endpoint.requests)
    whole, manifest = path.read_bytes(), load_manifest(run)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "torn" else whole[::-1])
    assert branchwise("verify", run, "--dry-run") == 1
    assert f"{part}.parquet" in capsys.readouterr().out
    assert load_manifest(run) == manifest
    assert branchwise("verify", run) == 1
    assert "rerun `branchwise annotate` (with --replay" in capsys.readouterr().out
    removed = {p.path for p in manifest.parts} - {p.path for p in load_manifest(run).parts}
    pair_of_parts = {"trees/part-00000.parquet", "pairs/part-00000.parquet"}
    assert removed == ({"questions.parquet"} if part == "questions" else pair_of_parts)
    assert branchwise("annotate", run, "--replay") == 0
    assert path.read_bytes() == whole
    assert load_manifest(run) == manifest
    assert len(endpoint.requests) == made
    assert branchwise("verify", run) == 0


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


def test_a_replay_without_all_calls_leaves_the_question_pending(
    finished: tuple[Path, FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    run, endpoint = finished
    made = len(endpoint.requests)
    (run / "trees" / "part-00000.parquet").unlink()
    with Ledger(run / "ledger.sqlite") as ledger:
        ledger._reading.execute("DELETE FROM calls WHERE question_id = 'q3'")
    mark_path(run / "ledger.sqlite").unlink()
    assert branchwise("verify", run) == 1
    capsys.readouterr()
    assert branchwise("annotate", run, "--replay") == 3
    assert "1 questions need calls that the ledger does not have" in capsys.readouterr().out
    assert question_ids(run, "trees") == {"q1", "q2", "q4", "q5", "q6"}
    assert len(endpoint.requests) == made


def test_a_replay_of_a_run_without_calls_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ("--config", str(recipe(tmp_path, "http://127.0.0.1:9/v1")))
    assert branchwise("annotate", tmp_path / "run", "--replay", *config) == 2
    assert "no run here" in capsys.readouterr().out


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
