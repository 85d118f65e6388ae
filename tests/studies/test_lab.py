"""The study runner: each stage runs once, is recorded in the journal, and resumes after a stop."""

import io
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import a_node, a_pair

from branchwise.cli.command_line import parser
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.runs.studies import study_runner as lab_module
from branchwise.runs.studies.journal import Event, Journal, command_key
from branchwise.runs.studies.study_runner import StageStopped, StageTotals, StudyRunner
from branchwise.runs.terminal import Terminal
from branchwise.storage.manifest import add_parts, load_manifest
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import rows_to_table, schema_of


def runner(folder: Path, *settings: str, dry_run: bool = False) -> StudyRunner:
    recipe = load_recipe(Path("configs/atlas.yaml"), ["data.cities=500", *settings])
    console = Terminal(io.StringIO())
    return StudyRunner(StageContext(recipe, folder / "run", dry_run=dry_run, console=console), (0,))


def test_a_finished_stage_is_not_rerun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runner(tmp_path).run_stage("data", settings={"data.limit": 3})
    assert first["questions"] == 3
    (ended,) = (event for event in runner(tmp_path).journal.events() if event.event == "done")
    assert ended.cpu_seconds > 0

    def refused(*_: object, **__: Any) -> None:
        raise AssertionError("started a process")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert runner(tmp_path).run_stage("data", settings={"data.limit": 3}) == first
    with pytest.raises(AssertionError, match="started"):
        runner(tmp_path).run_stage("data", settings={"data.limit": 4})
    with pytest.raises(AssertionError, match="started"):
        runner(tmp_path, "seed=1").run_stage("data", settings={"data.limit": 3})


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stages that ran, without processes; the content of products depends on their inputs."""
    ran: list[str] = []

    def run(words: Sequence[str]) -> tuple[int, StageTotals, bool]:
        stage, folder = words[0], Path(words[2])
        ran.append(stage)
        totals: dict[str, Any] = {"label": "x"} if stage == "relabel" else {"model": "models/x"}
        if stage == "relabel":
            write_relabelling(folder, " ".join(words))
        else:
            parts = load_manifest(folder).of("relabelled/x/pairs")
            write_model(Path("models/x"), " ".join((*words, *(part.sha256 for part in parts))))
        return 0, totals, False

    monkeypatch.setattr(lab_module, "_run", run)
    return ran


def write_relabelling(run: Path, content: str) -> None:
    run.mkdir(exist_ok=True)
    pair = a_pair(question=content)
    for kind, rows in (("labels", [a_node()]), ("pairs", [pair])):
        table = f"relabelled/x/{kind}"
        add_parts(run, [write_part(run, table, rows_to_table(rows, schema_of(table), "r"), 0)])


def write_model(folder: Path, content: str) -> None:
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    (folder / "adapter" / "weights").write_text(content)
    (folder / "training.json").write_text("{}")


def relabel_and_train(folder: Path, gap: float) -> None:
    """Runs a relabelling named x and a training on the pairs named x."""
    one = runner(folder)
    one.run_stage("relabel", "--label", "x", settings={"pairs.min_gap": gap})
    one.run_stage("train-dpo", "--label", "x", "--name", "x")


def test_a_training_is_rerun_if_its_pairs_changed(own_folder: Path, stages: list[str]) -> None:
    relabel_and_train(own_folder, 0.1)
    relabel_and_train(own_folder, 0.1)
    assert stages == ["relabel", "train-dpo"]
    relabel_and_train(own_folder, 0.2)
    assert stages == ["relabel", "train-dpo"] * 2
    # Both are recorded as done, but the files are those of the second one.
    relabel_and_train(own_folder, 0.1)
    assert stages == ["relabel", "train-dpo"] * 3


def test_a_stage_is_rerun_if_its_product_is_missing(own_folder: Path, stages: list[str]) -> None:
    relabel_and_train(own_folder, 0.1)
    shutil.rmtree("models/x")
    relabel_and_train(own_folder, 0.1)
    assert stages == ["relabel", "train-dpo", "train-dpo"]
    next((own_folder / "run").glob("relabelled/x/pairs/*")).unlink()
    relabel_and_train(own_folder, 0.1)
    assert stages[3:] == ["relabel", "train-dpo"], (
        "the training reads the relabelling, so both should run"
    )
    relabel_and_train(own_folder, 0.1)
    assert len(stages) == 5
    (own_folder / "run" / "manifest.json").unlink()
    relabel_and_train(own_folder, 0.1)
    assert stages[5:] == ["relabel", "train-dpo"]


def test_a_raised_limit_does_not_rerun_a_stage(own_folder: Path, stages: list[str]) -> None:
    settings = {"rewards.alpha": 1}
    runner(own_folder, "limits.max_hours=1").run_stage("relabel", settings=settings)
    runner(own_folder, "limits.max_hours=2").run_stage("relabel", settings=settings)
    assert stages == ["relabel"]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree("configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_changeable_and_memory_settings_do_not_rerun_a_stage(
    own_folder: Path, stages: list[str]
) -> None:
    def run_relabel(*settings: str) -> None:
        fits = ("training.dpo.max_length",)
        replace(runner(own_folder, *settings), changeable_settings=fits).run_stage("relabel")

    run_relabel()
    run_relabel("training.dpo.max_length=2048")
    assert stages == ["relabel"]
    run_relabel("training.dpo.lr=1")
    assert stages == ["relabel"] * 2
    runner(own_folder, "training.dpo.max_length=2048").run_stage("relabel")
    assert stages == ["relabel"] * 3, "by default, a changed max_length should rerun the stage"
    runner(own_folder, "training.dpo.max_length=2048", "training.dpo.micro_batch=1").run_stage(
        "relabel"
    )
    assert stages == ["relabel"] * 3, "micro_batch only affects rounding"


def test_a_command_in_the_journal_can_be_run_in_a_shell(
    own_folder: Path, stages: list[str]
) -> None:
    settings = {"data.corpus": ["it's $HOME; here", 'a "b"'], "evaluation.policies": {"a": "b c"}}
    one = runner(own_folder / "a folder; with blanks")
    one.run_stage("relabel", "--label", "x", settings=settings)
    ((started, *_),) = one.journal.by_command()
    printed = subprocess.run(
        ["sh", "-c", started.command.replace("branchwise", "printf '%s\\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    options = parser().parse_args(printed)
    recipe = load_recipe(options.config, options.overrides)
    assert options.run == one.context.run
    assert recipe.data.corpus == tuple(settings["data.corpus"])
    assert recipe.model_dump()["evaluation"]["policies"] == settings["evaluation.policies"]
    assert recipe == one.recipe_with(settings)


@pytest.mark.parametrize(
    ("ended", "code", "told"),
    [
        ((3, {}, False), 3, "exit code 3"),
        ((4, {}, False), 4, "exit code 4"),
        ((130, {}, True), 130, "interrupted"),
        ((-signal.SIGTERM, {}, False), 130, "interrupted"),
        ((-signal.SIGKILL, {}, False), 1, "signal 9"),
        ((0, {"n": 1}, True), 130, "interrupted"),
    ],
)
def test_the_exit_code_of_a_stage_is_that_of_the_study(
    ended: tuple[int, StageTotals, bool],
    code: int,
    told: str,
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lab_module, "_run", lambda words: ended)
    with pytest.raises(StageStopped, match=told) as stopped:
        runner(own_folder).run_stage("data")
    assert stopped.value.exit_code == code
    # A signal after the stage has finished stops the study, but the stage is recorded as done.
    kept = runner(own_folder).journal.events()
    assert [event.event for event in kept] == ["started", "failed" if ended[0] else "done"]


def test_a_failed_stage_is_recorded_in_the_journal_and_retried(tmp_path: Path) -> None:
    one = runner(tmp_path)
    with pytest.raises(StageStopped) as stopped:
        one.run_stage("relabel")
    assert stopped.value.exit_code == 2
    with pytest.raises(StageStopped):
        one.run_stage("relabel")
    (events,) = one.journal.by_command()
    assert [event.event for event in events] == ["started", "failed"] * 2
    assert events[-1].exit_code == 2
    assert "branchwise relabel --run" in events[-1].command


def test_a_dry_run_starts_no_stage_and_writes_nothing(tmp_path: Path) -> None:
    assert runner(tmp_path, dry_run=True).run_stage("data") == {}
    assert not (tmp_path / "run").exists()


def test_a_truncated_journal_line_does_not_hide_other_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.note(Event("a", "one", "started"))
    journal.note(Event("a", "one", "done", seconds=2, exit_code=0, totals={"n": 1}))
    whole = journal.path.read_text()
    journal.path.write_bytes(whole.encode() + b'{"key": "b", "comm\xe2\x88')
    journal.note(Event("c", "three", "started"))
    assert [event.key for event in journal.events()] == ["a", "a", "c"]
    assert journal.done("a") == {"n": 1}
    assert journal.done("c") is None


def test_the_key_of_a_command_depends_on_the_recipe_and_word_boundaries() -> None:
    assert command_key(("eval", "--run", "r"), "x") != command_key(("eval", "--run", "r"), "y")
    assert command_key(("a b",), "x") != command_key(("a", "b"), "x")
