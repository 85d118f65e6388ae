"""A run keeps its settings: edited or replaced files are refused with a message."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml
from durable import World, rows_of
from seams import Seam
from stages import Ended

from branchwise.storage.manifest import MANIFEST, load_manifest
from branchwise.storage.parts import read_parts

pytestmark = pytest.mark.failure

NAMED = "rewards.alpha: was 0.9, now 0.5"
STAGES: dict[str, tuple[str, ...]] = {
    "annotate": (),
    "diagnose": ("--no-model",),
    "import-pairs": ("--file", "{file}"),
    "train-dpo": (),
    "eval": (),
    "doctor": (),
}
"""Stages that open a run, with their other arguments."""
PAIR = {
    "instruction": "Answer.",
    "input": "Question: Capital of France?",
    "chosen": "<query>France</query>",
    "rejected": "<answer>Rome</answer>",
    "chosen_action_type": "Query Generation",
    "rejected_action_type": "Answer Generation",
    "chosen_content": "France",
    "rejected_content": "Rome",
    "layer": 0,
}


@pytest.fixture
def half(world: World, tmp_path: Path) -> Path:
    """A run that a token limit stopped half way."""
    run = tmp_path / "run"
    stopped = world.annotate(run, *tight_limits())
    assert stopped.code == 3, stopped.said
    return run


def tight_limits() -> tuple[str, ...]:
    return ("--set", "limits.max_tokens=1000", "--set", "limits.max_questions_in_flight=1")


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Edits a YAML or JSON file as a person would."""
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(json.dumps(content))  # JSON is YAML


def other_alpha(content: Any) -> None:
    content["rewards"]["alpha"] = 0.5


def other_alpha_still(content: Any) -> None:
    content["rewards"]["alpha"] = 0.7


def resume(world: World, run: Path) -> Ended:
    """Runs `annotate` with the run's own recipe; it must make no call."""
    before = len(world.seeds)
    ended = world.stages.run("annotate", "--run", run)
    assert "Traceback" not in ended.said
    assert len(world.seeds) == before
    return ended


def run_ids(run: Path) -> set[str]:
    tables = {part.table for part in load_manifest(run).parts}
    columns = [read_parts(run, table, ["run_id"])["run_id"] for table in tables]
    return {name for column in columns for name in pc.unique(column).to_pylist()}


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def other_alpha_in_record(content: Any) -> None:
    other_alpha(content["recipe"])


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_refuses_an_edited_record(
    stage: str, world: World, half: Path, tmp_path: Path
) -> None:
    (tmp_path / "pairs-in.json").write_text(json.dumps([PAIR]))
    edit(half / "provenance.json", other_alpha_in_record)
    kept, made = files(half), len(world.seeds)
    more = [word.format(file=tmp_path / "pairs-in.json") for word in STAGES[stage]]
    refused = world.stages.run(stage, "--run", half, *more)
    assert refused.code == 2, refused.said
    assert f"{half / 'provenance.json'}: cannot be read" in refused.said
    assert "its content changed since it was written" in refused.said
    assert "--run folder" in refused.said, "the message must say what to do"
    assert "Traceback" not in refused.said
    calls = 2 if stage == "doctor" else 0  # those of annotate and of eval
    assert len(world.seeds) == made + calls, "only `doctor` makes calls"
    assert kept == files(half)


def test_config_yaml_is_a_copy_that_a_resumed_run_restores(world: World, half: Path) -> None:
    copy = (world.whole / "config.yaml").read_text()
    edit(half / "config.yaml", other_alpha)
    kept = files(half)
    refused = resume(world, half)
    assert refused.code == 2
    assert NAMED in refused.said
    assert refused.said.count(", now ") == 1
    assert kept == files(half)
    assert world.stages.run("inspect", "--run", half).code == 0
    world.finish(half)  # with the recipe on the command line
    assert (half / "config.yaml").read_text() == copy
    assert len(run_ids(half)) == 1


def test_all_edits_of_a_recipe_are_listed(world: World, half: Path) -> None:
    def change(content: Any) -> None:
        other_alpha(content)
        content["seed"] = 7
        content["mcts"].pop("c")  # it has the default value, so nothing changes
        content["judge"] = {"model": "somebody"}

    edit(half / "config.yaml", change)
    said = resume(world, half).said
    assert NAMED in said
    assert "seed: was 0, now 7" in said
    assert "judge.model: was None, now 'somebody'" in said
    assert "mcts.c:" not in said


def test_limits_training_and_prices_may_be_edited(world: World, half: Path) -> None:
    def change(content: Any) -> None:
        content["limits"]["max_tokens"] = None
        content["limits"]["max_concurrency"] = 3
        content["training"]["dpo"]["lr"] = 0.5
        content["policy"]["price_per_million"] = {"input": 0.1}
        content["policy"]["api_key_env"] = "OTHER_KEY"

    edit(half / "config.yaml", change)
    done = world.stages.run("annotate", "--run", half, environment={"OTHER_KEY": "test-key"})
    assert done.code == 0, done.said
    assert rows_of(half, "pairs") == rows_of(world.whole, "pairs")


def test_a_relabelling_leaves_the_run_intact_and_is_sealed_too(world: World, half: Path) -> None:
    world.finish(half)
    relabelled = world.stages.run(
        "relabel", "--run", half, "--set", "rewards.alpha=0.5", "--label", "half"
    )
    assert relabelled.code == 0, relabelled.said
    assert world.stages.run("inspect", "--run", half).code == 0
    assert resume(world, half).code == 0
    assert len(run_ids(half)) == 1
    edit(half / "relabelled" / "half" / "labelling.yaml", other_alpha_still)
    diagnosed = world.stages.run("diagnose", "--run", half, "--label", "half", "--no-model")
    assert diagnosed.code == 2, diagnosed.said
    assert "labelling.yaml: was changed after the relabelling was made" in diagnosed.said


def test_a_renamed_run_folder_keeps_its_run_id(world: World, half: Path, tmp_path: Path) -> None:
    (before,) = run_ids(half)
    moved = half.rename(tmp_path / "of-another-name")
    assert world.annotate(moved).code == 0
    assert run_ids(moved) == {before}


def test_an_edited_manifest_is_refused(world: World, half: Path) -> None:
    edit(half / MANIFEST, lambda content: content.pop("seal"))
    refused = resume(world, half)
    assert refused.code == 1, refused.said
    assert "its content changed since it was written" in refused.said


def test_annotate_rebuilds_a_missing_manifest(world: World, half: Path) -> None:
    (half / MANIFEST).unlink()
    done = world.annotate(half)
    assert done.code == 0, done.said
    assert rows_of(half, "pairs") == rows_of(world.whole, "pairs")


def test_a_missing_ledger_is_rebuilt_only_after_its_mark_is_removed(
    world: World, half: Path
) -> None:
    (half / "ledger.sqlite").unlink()
    refused = world.annotate(half)
    assert refused.code == 1, refused.said
    assert "holds 0 calls" in refused.said
    (half / "ledger.stored").unlink()
    done = world.annotate(half)
    assert done.code == 0, done.said
    assert rows_of(half, "pairs") == rows_of(world.whole, "pairs")


START_SEAMS = [
    Seam("half", "*/.provenance.json-*"),
    Seam("rename", "*/provenance.json"),
    Seam("rename", "*/provenance.json", "after"),
    Seam("rename", "*/config.yaml"),
    Seam("rename", "*/config.yaml", "after"),
    Seam("sql", "PRAGMA user_version = *", "after"),
    Seam("sql", "COMMIT"),
    Seam("sql", "COMMIT", "after"),
]
"""Before and after every write at the start of a run."""


@pytest.mark.parametrize("seam", START_SEAMS, ids=str)
def test_a_run_killed_during_its_start_can_be_restarted(
    seam: Seam, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed = world.annotate(run, seam=seam)
    assert killed.code == -9, killed.said
    world.finish(run)
    assert resume(world, run).code == 0, "config.yaml and provenance.json must match"


@pytest.mark.parametrize("seam", START_SEAMS[:2], ids=str)
def test_until_its_record_is_written_a_run_accepts_another_one(
    seam: Seam, world: World, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert world.annotate(run, "--set", "rewards.alpha=0.5", seam=seam).code == -9
    world.finish(run)


def test_unrelated_files_with_names_of_a_run_are_not_overwritten(
    world: World, tmp_path: Path
) -> None:
    for name, says in (
        ("provenance.json", "cannot be read as the record of a run"),
        (MANIFEST, "not empty and not a run"),
    ):
        run = tmp_path / name.partition(".")[0]
        run.mkdir()
        (run / name).write_text("{}")
        refused = world.annotate(run)
        assert refused.code == 2, refused.said
        assert says in refused.said
        assert (run / name).read_text() == "{}"


def test_annotate_after_eval_needs_the_settings_that_eval_started_with(
    world: World, tmp_path: Path
) -> None:
    """A run that `eval` started may only be annotated with the same settings."""
    run, asked = tmp_path / "run", {"source": "jsonl", "split": None}
    questions = tmp_path / "asked.jsonl"
    questions.write_text(json.dumps({"id": "x", "question": "Which sea?", "answers": ["Aral"]}))
    evaluation = {"policies": {"one": "policy"}, "set": {**asked, "questions": str(questions)}}
    words = ["eval", "--config", world.recipe, "--run", run, "--set", "policy.temperature=0.3"]
    settings = [f"evaluation.{name}={json.dumps(value)}" for name, value in evaluation.items()]
    words += [word for one in settings for word in ("--set", one)]
    evaluated = world.stages.run(*words)
    assert evaluated.code == 0, evaluated.said
    refused = world.annotate(run)
    assert refused.code == 2, refused.said
    assert "policy.temperature: was 0.3, now 0.8" in refused.said
    # An evaluation may use other sampling settings; its rows still belong to this run.
    repeated = world.stages.run(
        *words, "--set", "policy.temperature=0.4", "--set", "agent.max_steps=5"
    )
    assert repeated.code == 0, repeated.said
    assert len(run_ids(run)) == 1
