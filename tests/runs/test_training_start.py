"""The start of a training: its policy must have generated its data, and its folder be its own."""

import json
from pathlib import Path

import pytest
from sample_records import a_pair, a_question

from branchwise.base.errors import ConfigError
from branchwise.cli.command_line import parser, run_stage
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.served_weights import served_digest
from branchwise.pipelines.train_grpo import stage as train_grpo
from branchwise.pipelines.train_grpo.planned_trainings import with_stage
from branchwise.runs.folder import existing_run, open_run
from branchwise.runs.recipe import Recipe
from branchwise.runs.stage import StageContext
from branchwise.runs.training_start import trained_folder, training_data_provenance
from branchwise.storage.manifest import add_parts
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import rows_to_table, schema_of
from branchwise.weights.policies import policy_digest, policy_files


def write_run_of_policy(run: Path, model: str, digest: str, engine: str = "openvino") -> None:
    """Creates a run with one pair that this policy generated."""
    policy = {"engine": engine, "model": model, "base_url": "http://127.0.0.1:1/v1"}
    recipe = Recipe.model_validate({"name": run.name, "policy": policy})
    opened = open_run(run, recipe, {})
    rows = rows_to_table([a_pair(policy_digest=digest)], schema_of("pairs"), opened.id)
    add_parts(run, [write_part(run, "pairs", rows, 0)])


def dry_run_training(run: Path, start: str, stage: str, *more: str) -> int:
    config = run.parent / "recipe.yaml"
    config.write_text(json.dumps({"name": "little", "policy": {"model": start}}))
    arguments = [stage, "--config", str(config), "--run", str(run), "--dry-run", *more]
    return run_stage(parser().parse_args(arguments))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Files of two policies, which are never loaded."""
    monkeypatch.setattr("branchwise.runs.preflight.check_embedded", lambda files: None)
    for name in ("ours", "other"):
        (tmp_path / f"{name}.gguf").write_bytes(name.encode())
    return str(tmp_path / "ours.gguf"), str(tmp_path / "other.gguf")


@pytest.fixture
def own_run(models: tuple[str, str], tmp_path: Path) -> Path:
    """A run with one pair that the first policy generated."""
    write_run_of_policy(tmp_path / "run", models[0], policy_digest(policy_files(models[0]), "f16"))
    return tmp_path / "run"


@pytest.mark.parametrize("stage", ["train-dpo", "train-sft"])
@pytest.mark.parametrize("precision", ["f16", "q8_0"])
def test_pairs_can_only_train_the_policy_that_generated_them(
    stage: str,
    precision: str,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (ours, other), run = models, tmp_path / "run"
    digest = policy_digest(policy_files(ours), precision)
    write_run_of_policy(run, ours, digest)
    assert dry_run_training(run, ours, stage) == 0, "the precision of the engine should not matter"
    capsys.readouterr()
    assert dry_run_training(run, other, stage) == 2
    told = capsys.readouterr().out
    assert digest in told
    assert policy_digest(policy_files(other), "f16") in told
    assert f"--set policy.model={ours}" in told
    # The same name with other weights, as if the policy had been retrained.
    Path(ours).write_bytes(b"trained again")
    assert dry_run_training(run, ours, stage) == 2


TREES = ("--set", "training.grpo.rollouts=trees")


@pytest.mark.parametrize("stage", [("train-dpo",), ("train-sft",), ("train-grpo", *TREES)])
def test_a_missing_relabelling_is_reported(
    stage: tuple[str, ...],
    models: tuple[str, str],
    own_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *more = stage
    assert dry_run_training(own_run, models[0], name, *more, "--label", "strikt") == 2
    assert "--label strikt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ratio=engine", "trees store no log-probabilities"),
        ("eval_every=5", "trees is one training without evaluations"),
        ("stages=[{name: a}]", "trees is one training without evaluations"),
    ],
)
def test_settings_of_fresh_rollouts_are_refused_for_training_on_trees(
    setting: str,
    message: str,
    models: tuple[str, str],
    own_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed = ("--set", f"training.grpo.{setting}")
    assert dry_run_training(own_run, models[0], "train-grpo", *TREES, *changed) == 2
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(("children", "expected"), [(None, 0.7), (1.2, 1.2)])
def test_training_on_trees_uses_the_temperature_of_their_nodes(
    children: float | None,
    expected: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = Recipe.model_validate(
        {"name": "run", "policy": {"temperature": 0.7}, "mcts": {"temperature": children}}
    )
    open_run(tmp_path / "run", drawn, {})
    asked = Recipe.model_validate({"name": "run", "training": {"grpo": {"rollouts": "trees"}}})
    seen = {}

    def train(*_: object, temperature: float, **__: object) -> None:
        seen["temperature"] = temperature
        raise ConfigError("seen")

    monkeypatch.setattr(train_grpo, "train", train)
    monkeypatch.setattr(train_grpo, "validated_start_policy", lambda *_: "packaged")
    monkeypatch.setattr(train_grpo, "tree_groups", lambda *_: [(a_question(), [])])
    with pytest.raises(ConfigError, match="seen"):
        train_grpo.train_grpo(StageContext(asked, tmp_path / "run"))
    assert seen == {"temperature": expected}


def test_a_stage_does_not_depend_on_the_stages_after_it() -> None:
    def first(batches: int) -> Recipe:
        stages = [{"name": "format", "batches": 3}, {"name": "answers", "batches": batches}]
        recipe = Recipe.model_validate({"name": "run", "training": {"grpo": {"stages": stages}}})
        return with_stage(recipe, recipe.training.grpo.stages[0])

    assert first(5).training == first(6).training
    assert first(5).training.grpo.batches == 3


def test_off_policy_pairs_need_a_dpo_setting_and_are_logged(
    models: tuple[str, str], own_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ours, other), run = models, own_run
    asked = ("--set", "training.dpo.allow_off_policy_pairs=true")
    assert dry_run_training(run, other, "train-dpo", *asked) == 0
    assert f"off-policy: {ours} drew the rows, and {other} is" in capsys.readouterr().out
    assert dry_run_training(run, ours, "train-dpo", *asked) == 0
    assert "off-policy" not in capsys.readouterr().out, "the policy's own pairs are not off-policy"
    assert dry_run_training(run, other, "train-sft", *asked) == 2, "the setting applies only to DPO"


def test_the_digest_of_a_served_policy_is_compared_with_the_served_digest(
    models: tuple[str, str], tmp_path: Path
) -> None:
    (ours, other), run = models, tmp_path / "run"
    write_run_of_policy(run, ours, served_digest(ModelSettings(engine="vllm", model=ours)), "vllm")
    assert dry_run_training(run, ours, "train-dpo") == 0
    assert dry_run_training(run, other, "train-dpo") == 2


@pytest.mark.parametrize(
    ("engine", "digest"), [("openai", "a1b2"), ("vllm", "a1b2"), ("openvino", "")]
)
def test_an_origin_of_the_pairs_that_cannot_be_checked_is_logged(
    engine: str,
    digest: str,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run_of_policy(tmp_path / "run", "served", digest, engine)
    assert dry_run_training(tmp_path / "run", models[0], "train-dpo") == 0
    told = capsys.readouterr().out
    assert ("cannot be checked" if digest else "imported rows is unknown") in told


@pytest.mark.parametrize(
    ("name", "told", "code"),
    [
        (None, "models/run/{kind}", 0),
        ("arm-2", "models/run/arm-2", 0),
        ("../elsewhere", "not a valid folder name", 2),
        ("warm-start", "choose another", 2),
    ],
)
@pytest.mark.parametrize("kind", ["dpo", "sft"])
def test_name_selects_the_model_folder(
    kind: str,
    name: str | None,
    told: str,
    code: int,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run_of_policy(tmp_path / "run", "served", "a1b2", "openai")
    named = ("--name", name) if name else ()
    assert dry_run_training(tmp_path / "run", models[0], f"train-{kind}", *named) == code
    assert told.format(kind=kind) in capsys.readouterr().out


def test_training_data_provenance_is_identified_by_content(tmp_path: Path) -> None:
    for name, digest in (("one", "a"), ("same", "a"), ("other", "b")):
        write_run_of_policy(tmp_path / name / "run", "served", digest)
    one, same, other = (
        training_data_provenance(existing_run(tmp_path / name / "run"), "pairs")
        for name in ("one", "same", "other")
    )
    assert one == same
    assert (one["run"], one["table"], one["rows"]) == ("run", "pairs", 1)
    assert one["digest"] != other["digest"]


@pytest.mark.parametrize(("held", "stage", "code"), [
    ("reward-model", "train-dpo", 2),
    ("sft", "train-dpo", 0),
    ("dpo", "train-rm", 2),
])  # fmt: skip
def test_a_policy_and_a_reward_model_cannot_use_the_same_folder(
    held: str,
    stage: str,
    code: int,
    models: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "branchwise.runs.training_start.model_folder", lambda run, name: tmp_path / name
    )
    monkeypatch.setattr(
        "branchwise.pipelines.train_rm.stage.build_comparisons", lambda *_: (None, None)
    )
    monkeypatch.setattr("branchwise.pipelines.train_rm.stage.labels_of", lambda *_: None)
    write_run_of_policy(tmp_path / "run", "served", "a1b2", "openai")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "training.json").write_text(json.dumps({"kind": held}))
    assert dry_run_training(tmp_path / "run", models[0], stage, "--name", "taken") == code
    assert ("taken: holds" in capsys.readouterr().out) == (code == 2)


def test_training_does_not_write_through_symbolic_links_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    letters, models = tmp_path / "letters", tmp_path / "models" / "run"
    letters.mkdir()
    (letters / "metrics.jsonl").write_text("Dear friend")
    call = StageContext(Recipe(name="run"), Path("datasets/run"))
    models.mkdir(parents=True)
    (models / "dpo").symlink_to(letters)
    with pytest.raises(ConfigError, match="models/run/dpo: is a symbolic link"):
        trained_folder(call, "dpo", "dpo")
    (models / "dpo").unlink()
    (models / "dpo").mkdir()
    (models / "dpo" / "metrics.jsonl").symlink_to(letters / "metrics.jsonl")
    with pytest.raises(ConfigError, match=r"dpo/metrics\.jsonl: is a symbolic link"):
        trained_folder(call, "dpo", "dpo")
    (models / "dpo" / "metrics.jsonl").unlink()
    (tmp_path / "models").rename(tmp_path / "elsewhere")
    (tmp_path / "models").symlink_to(tmp_path / "elsewhere")
    assert trained_folder(call, "dpo", "dpo") == Path("models/run/dpo")
