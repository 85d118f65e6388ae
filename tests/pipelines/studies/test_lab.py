"""A study's steps run once each, are noted whatever becomes of them, and go on after a stop."""

import io
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.config import load_recipe
from pipelines.stage import Invocation
from pipelines.studies.journal import Event, Journal, command_key
from pipelines.studies.lab import Lab, StageStopped, overrides


def lab(folder: Path, *settings: str, dry_run: bool = False) -> Lab:
    recipe = load_recipe(Path("configs/atlas.yaml"), ["data.cities=500", *settings])
    console = Console(file=io.StringIO(), width=200)
    return Lab(Invocation(recipe, folder / "run", dry_run=dry_run, console=console), (0,))


def test_a_finished_stage_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab(tmp_path).branchwise("data", settings={"data.limit": 3})
    assert first["questions"] == 3

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("started a process")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert lab(tmp_path).branchwise("data", settings={"data.limit": 3}) == first
    with pytest.raises(AssertionError, match="started"):
        lab(tmp_path).branchwise("data", settings={"data.limit": 4})
    with pytest.raises(AssertionError, match="started"):
        lab(tmp_path, "seed=1").branchwise("data", settings={"data.limit": 3})


def test_a_failure_is_noted_and_tried_again(tmp_path: Path) -> None:
    one = lab(tmp_path)
    with pytest.raises(StageStopped) as stopped:
        one.branchwise("relabel")
    assert stopped.value.exit_code == 2
    with pytest.raises(StageStopped):
        one.branchwise("relabel")
    (started,) = one.journal.started()
    assert started.attempts == 2
    assert started.exit_code == 2
    assert "branchwise relabel --run" in started.command


def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    assert lab(tmp_path, dry_run=True).branchwise("data") == {}
    assert not (tmp_path / "run").exists()


def test_a_torn_line_hides_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.note(Event("a", "one", "started"))
    journal.note(Event("a", "one", "done", seconds=2, exit_code=0, totals={"n": 1}))
    whole = journal.path.read_text()
    journal.path.write_text(whole + '{"key": "b", "comm')
    journal.note(Event("c", "three", "started"))
    assert [event.key for event in journal.events()] == ["a", "a", "c"]
    assert journal.done("a") == {"n": 1}
    assert journal.done("c") is None


def test_the_recipe_is_part_of_a_command() -> None:
    assert command_key(("eval", "--run", "r"), "x") != command_key(("eval", "--run", "r"), "y")
    assert command_key(("a b",), "x") != command_key(("a", "b"), "x")


def test_overrides_survive_yaml() -> None:
    words = overrides({"evaluation.set": {"source": "atlas", "limit": 2}, "evaluation.limit": 7})
    recipe = load_recipe(Path("configs/atlas.yaml"), [w for w in words if w != "--set"])
    assert recipe.evaluation.set is not None
    assert recipe.evaluation.set.limit == 2
    assert recipe.evaluation.limit == 7
