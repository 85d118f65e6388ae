"""`branchwise study`: checks before it starts, and dry runs."""

import sys
from pathlib import Path

import little_study
import pytest

from branchwise.base.lock import RunLock
from branchwise.cli.command_line import parser, run_stage
from branchwise.runs.folder import check_run_folder
from branchwise.runs.studies.study_runner import Study

STUDIES = {"little": "little_study"}


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchwise.pipelines.study.stage.STUDIES", STUDIES)
    monkeypatch.setattr("little_study.STUDY", Study(little_study.little))


def study(run: Path, *more: str, name: str = "little") -> int:
    config = ("--config", "configs/atlas.yaml")
    return run_stage(
        parser().parse_args(["study", "--name", name, "--run", str(run), *config, *more])
    )


def test_seeds_of_a_study_without_seeds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("little_study.STUDY", Study(little_study.little, seeds=()))
    assert study(tmp_path / "run", "--seeds", "1") == 2
    assert "study little uses none" in capsys.readouterr().out


def test_names_seeds_and_folders_are_checked_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(tmp_path / "run", name="larger") == 2
    assert "study 'larger': no such study; there are little" in capsys.readouterr().out
    assert study(tmp_path / "run", "--seeds", "0", "1", "0") == 2
    assert "--seeds names 0 more than once" in capsys.readouterr().out
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    assert study(tmp_path / "letters") == 2
    assert not (tmp_path / "run").exists()


def test_a_running_server_is_rejected_for_a_study_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = "policy={engine: vllm, model: smollm2, base_url: http://localhost:1}"
    assert study(tmp_path / "run", "--set", there) == 2
    assert "study little: policy.base_url names a running server" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_missing_matplotlib_is_reported_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert study(tmp_path / "run") == 2
    assert "pip install 'branchwise[study]'" in capsys.readouterr().out


def test_a_study_in_use_by_another_process_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "study").mkdir(parents=True)
    with RunLock(tmp_path / "run" / "study" / "study.lock"):
        assert study(tmp_path / "run") == 2
    assert "study is in use by process" in capsys.readouterr().out


def test_a_dry_run_prints_the_commands_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(tmp_path / "run", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "study: branchwise annotate --run" in said
    assert "study: branchwise relabel --run" in said
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_contains_only_a_study_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    check_run_folder(tmp_path)
