"""The studies of EVO-RAG: shared trees, relabellings, two-step trainings and tables."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evo_answers import searching
from evo_world import words_alike
from fake_study_runner import Command, Pretended, gives_nothing, pretended
from sample_records import a_question

from branchwise.cli.command_line import parser, run_stage
from branchwise.pipelines.study.stage import STUDIES, study_named
from branchwise.runs.studies.journal import artifact_digest
from branchwise.sources.load import Data
from branchwise.studies import arms
from branchwise.studies.arms import Arm
from branchwise.studies.evo import combinations as evo_combinations
from branchwise.studies.evo import literal as evo_literal
from branchwise.studies.evo import schedules as evo_schedules
from branchwise.studies.evo import single as evo_single
from branchwise.studies.evo import step_value as evo_step_value


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    rows = searching(2, "1100" * 3, unanswerable=2)
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)
    asked = tuple(a_question(id=f"q{n}", answerable=n < 12) for n in range(14))
    monkeypatch.setattr(evo_schedules, "evaluation_data", lambda _: Data(asked, (), {}))
    for module in (evo_schedules, evo_combinations):
        monkeypatch.setattr(module, "query_similarity", lambda: words_alike)
    return shared(tmp_path)


def shared(folder: Path, **more: Any) -> Pretended:
    (folder / "run").mkdir(exist_ok=True)
    return pretended("evo-studies", folder / "run", output_folder=folder / "kept", **more)


EVO_STUDIES = [name for name in STUDIES if study_named(name).recipe == "evo-studies"]


def table(runner: Pretended, name: str) -> list[dict[str, str]]:
    with (runner.folder / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def all_arms() -> Iterator[Arm]:
    for module in (evo_schedules, evo_literal, evo_combinations, evo_step_value):
        for arm in module.ARMS:
            yield from (one for one in (arm.before, arm) if one is not None)


def test_studies_of_one_run_do_not_overwrite_each_other() -> None:
    """Labels and model folders of equal names have equal content in all studies."""
    made: dict[str, Any] = {}
    for arm in all_arms():
        if arm.trainer:
            content = (arm.pairs, arm.training, arm.before)
            assert made.setdefault(arm.label or arm.name, content) == content
            assert (arm.models or arm.name) == (arm.label or arm.name)
    assert "full" in made
    own = {f"only-{reward}" for reward in evo_single.PAPERS}
    assert own.isdisjoint(made)


def reward_model(head: dict[str, Any]) -> dict[str, Any]:
    score = {"accuracy": 0.7, "length_only": 0.55}
    pairs = {"trained": 300, "validation": 80}
    return {"model": "m", "pairs": pairs, "loss": head["loss"], "heads": {"total": head}} | {
        "score": score
    }


def single(command: Command) -> dict[str, Any]:
    """Totals with too few siblings for `backtrack` and too few pairs for `step`."""
    reward = command.settings.get("rewards.components", [None])[0]
    if command.stage == "train-rm" and "--dry-run" in command.arguments:
        return {"heads": {"total": 9 if reward == "backtrack" else 380}, "dry_run": True}
    if command.stage == "train-rm":
        return reward_model({"accuracy": 0.75, "loss": 0.5, "length_only": 0.6})
    if command.stage == "relabel":
        return {"pairs": 4 if reward == "step" else 200}
    if command.stage == "train-dpo":
        accuracy = 0.5 + command.settings["seed"] / 10
        return {"examples": 160, "holdout": {"pairs": 40, "accuracy": accuracy, "loss": 0.65}}
    return {}


def heads(command: Command) -> dict[str, Any]:
    """Totals of train-rm: single heads have the losses 0.6 and 0.8, others 0.5 and 0.5."""
    if command.stage != "train-rm":
        return {}
    single = command.settings["training.reward_model.heads"] == "single"
    seed = command.settings["seed"]
    loss = 0.6 + 0.2 * seed if single else 0.5
    found = reward_model({"pairs": 80, "accuracy": 0.7, "loss": loss, "length_only": 0.6})
    return found | {"score": {"accuracy": 0.6 + 0.1 * seed, "length_only": 0.55}}


@pytest.mark.parametrize("name", EVO_STUDIES)
def test_every_study_shares_the_trees_and_evaluates_test_once(
    name: str, tmp_path: Path, runner: Pretended
) -> None:
    told = {"evo-heads": heads, "evo-single": single}.get(name, gives_nothing)
    own = shared(tmp_path, told=told)
    study_named(name).carry_out(own)
    assert own.stages()[0] == "annotate"
    assert own.stages().count("annotate") == 1
    asked = own.asked("test")
    assert len(asked) == len(set(asked)), "every policy should be evaluated once"
    assert own.asked("dev") == []
    for command in own.ran:
        own.recipe_with(command.settings)
    assert (own.folder / f"{name}.md").exists()
    tables = {file.stem: table(own, file.stem) for file in own.folder.glob("*.csv")}
    assert all(tables.values()), tables
    assert (own.folder / f"{name}.svg").read_text().lstrip().startswith("<?xml")


def test_a_dry_run_of_train_rm_has_no_artifact_to_check(tmp_path: Path) -> None:
    assert artifact_digest("train-rm", tmp_path, {"pairs": 3, "dry_run": True}) == ""
    assert artifact_digest("train-rm", tmp_path, {"model": str(tmp_path / "none")}) is None


def test_the_artifact_of_a_training_of_all_weights_is_their_digest(tmp_path: Path) -> None:
    model, totals = tmp_path / "sft", {"model": str(tmp_path / "sft")}
    model.mkdir()
    (model / "training.json").write_text("{}")
    found = []
    for weights in (b"one", b"other"):
        (model / "model.safetensors").write_bytes(weights)
        found.append(artifact_digest("train-sft", tmp_path, totals))
    assert None not in found and found[0] != found[1]


@pytest.mark.parametrize("name", EVO_STUDIES)
def test_a_study_has_a_default_recipe_and_run_folder(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree("configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    assert run_stage(parser().parse_args(["study", "--name", name, "--dry-run"])) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "study: branchwise" in line]
    assert said[0].startswith("study: branchwise annotate --run datasets/evo-studies --config ")
    assert f"datasets/evo-studies/study/{name}/recipe-" in said[0]
    assert all("--run datasets/evo-studies" in line for line in said)
    stages = [line.split()[2] for line in said]
    wanted = {"annotate", "train-rm"} if name == "evo-heads" else {"annotate", "train-dpo", "eval"}
    assert wanted <= set(stages)
    assert not Path("datasets").exists()
