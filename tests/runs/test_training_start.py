"""Training starts from the policy that drew what it is taught, or says that nobody knows."""

import json
from pathlib import Path

import pytest
from sample_records import a_pair, a_question

from base.errors import ConfigError
from engines.settings import ModelSettings
from engines.vllm.weights import served_digest
from pipelines import train_grpo
from pipelines.cli import parser, run_stage
from runs.folder import existing_run, open_run
from runs.recipe import Recipe
from runs.stage import StageContext
from runs.training.start import trained_folder, training_data_provenance
from storage.manifest import add_parts
from storage.parts import write_part
from storage.schemas import rows_to_table, schema_of
from weights.policy_files import policy_digest, policy_files


def drawn_by(run: Path, model: str, digest: str, engine: str = "openvino") -> None:
    """A run with one pair of that policy."""
    policy = {"engine": engine, "model": model, "base_url": "http://127.0.0.1:1/v1"}
    recipe = Recipe.model_validate({"name": run.name, "policy": policy})
    opened = open_run(run, recipe, {})
    rows = rows_to_table([a_pair(policy_digest=digest)], schema_of("pairs"), opened.id)
    add_parts(run, [write_part(run, "pairs", rows, 0)])


def trained(run: Path, start: str, stage: str, *more: str) -> int:
    config = run.parent / "recipe.yaml"
    config.write_text(json.dumps({"name": "little", "policy": {"model": start}}))
    arguments = [stage, "--config", str(config), "--run", str(run), "--dry-run", *more]
    return run_stage(parser().parse_args(arguments))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two policies; nothing here loads them."""
    monkeypatch.setattr("runs.preflight.check_embedded", lambda files: None)
    for name in ("ours", "other"):
        (tmp_path / f"{name}.gguf").write_bytes(name.encode())
    return str(tmp_path / "ours.gguf"), str(tmp_path / "other.gguf")


@pytest.mark.parametrize("stage", ["train-dpo", "train-sft"])
@pytest.mark.parametrize("precision", ["f16", "q8_0"])
def test_only_the_policy_that_drew_the_pairs_is_trained_on_them(
    stage: str,
    precision: str,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (ours, other), run = models, tmp_path / "run"
    digest = policy_digest(policy_files(ours), precision)
    drawn_by(run, ours, digest)
    assert trained(run, ours, stage) == 0, "whatever precision the engine ran it at"
    capsys.readouterr()
    assert trained(run, other, stage) == 2
    told = capsys.readouterr().out
    assert digest in told
    assert policy_digest(policy_files(other), "f16") in told
    assert f"--set policy.model={ours}" in told
    # The same name for other weights, as after training the policy again.
    Path(ours).write_bytes(b"trained again")
    assert trained(run, ours, stage) == 2


TREES = ("--set", "training.grpo.rollouts=trees")


@pytest.mark.parametrize("stage", [("train-dpo",), ("train-sft",), ("train-grpo", *TREES)])
def test_a_missing_relabelling_is_named(
    stage: tuple[str, ...],
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn_by(tmp_path / "run", models[0], policy_digest(policy_files(models[0]), "f16"))
    name, *more = stage
    assert trained(tmp_path / "run", models[0], name, *more, "--label", "strikt") == 2
    assert "--label strikt" in capsys.readouterr().out


def test_trees_have_no_ratio_of_the_engine(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn_by(tmp_path / "run", models[0], policy_digest(policy_files(models[0]), "f16"))
    ratio = ("--set", "training.grpo.ratio=engine")
    assert trained(tmp_path / "run", models[0], "train-grpo", *TREES, *ratio) == 2
    assert "trees store no log-probabilities" in capsys.readouterr().out


@pytest.mark.parametrize(("children", "expected"), [(None, 0.7), (1.2, 1.2)])
def test_trees_are_trained_at_the_temperature_of_their_nodes(
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
        return train_grpo.with_stage(recipe, recipe.training.grpo.stages[0])

    assert first(5).training == first(6).training
    assert first(5).training.grpo.batches == 3


def test_off_policy_is_asked_for_and_said(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ours, other), run = models, tmp_path / "run"
    drawn_by(run, ours, policy_digest(policy_files(ours), "f16"))
    asked = ("--set", "training.dpo.allow_off_policy_pairs=true")
    assert trained(run, other, "train-dpo", *asked) == 0
    assert f"off-policy: {ours} drew the rows, and {other} is" in capsys.readouterr().out
    assert trained(run, ours, "train-dpo", *asked) == 0
    assert "off-policy" not in capsys.readouterr().out, "the policy's own pairs are no exception"
    assert trained(run, other, "train-sft", *asked) == 2, "it is DPO's setting"


def test_a_policy_that_was_served_is_compared_as_it_was_served(
    models: tuple[str, str], tmp_path: Path
) -> None:
    (ours, other), run = models, tmp_path / "run"
    drawn_by(run, ours, served_digest(ModelSettings(engine="vllm", model=ours)), "vllm")
    assert trained(run, ours, "train-dpo") == 0
    assert trained(run, other, "train-dpo") == 2


@pytest.mark.parametrize(
    ("engine", "digest"), [("openai", "a1b2"), ("vllm", "a1b2"), ("openvino", "")]
)
def test_where_nobody_can_know_it_is_said(
    engine: str,
    digest: str,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn_by(tmp_path / "run", "served", digest, engine)
    assert trained(tmp_path / "run", models[0], "train-dpo") == 0
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
def test_arms_of_one_run_have_a_folder_each(
    kind: str,
    name: str | None,
    told: str,
    code: int,
    models: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn_by(tmp_path / "run", "served", "a1b2", "openai")
    named = ("--name", name) if name else ()
    assert trained(tmp_path / "run", models[0], f"train-{kind}", *named) == code
    assert told.format(kind=kind) in capsys.readouterr().out


def test_rows_are_known_by_their_content(tmp_path: Path) -> None:
    for name, digest in (("one", "a"), ("same", "a"), ("other", "b")):
        drawn_by(tmp_path / name / "run", "served", digest)
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
def test_a_policy_and_a_reward_model_do_not_share_a_folder(
    held: str,
    stage: str,
    code: int,
    models: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("runs.training.start.model_folder", lambda run, name: tmp_path / name)
    monkeypatch.setattr("pipelines.train_rm.build_comparisons", lambda *_: (None, None))
    monkeypatch.setattr("pipelines.train_rm.labels_of", lambda *_: None)
    drawn_by(tmp_path / "run", "served", "a1b2", "openai")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "training.json").write_text(json.dumps({"kind": held}))
    assert trained(tmp_path / "run", models[0], stage, "--name", "taken") == code
    assert ("taken: holds" in capsys.readouterr().out) == (code == 2)


def test_a_training_writes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
