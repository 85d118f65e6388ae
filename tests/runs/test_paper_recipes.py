"""Recipes at the scale of the papers: loading, sets and dry runs."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from branchwise.agent.protocols import protocol_of
from branchwise.cli.command_line import parser, run_stage
from branchwise.rewards.schemes import scheme_of
from branchwise.runs.recipe_file import load_recipe

PASSAGES = [{"id": "p1", "title": "Lyon", "text": "Lyon is a city in France."}]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
def test_outcome_recipes_at_paper_scale_load(name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}-paper.yaml")
    assert recipe.agent.protocol == name
    assert name in scheme_of(recipe).protocols
    assert protocol_of(recipe.agent).prompts
    for part in recipe.data.mix:
        assert part.split is None, "the split should be that of the paper, not a part by hash"
    assert recipe.stages[-2:] == ("train-grpo", "eval")
    assert "grpo" in recipe.evaluation.policies, "the trained policy should be evaluated"


@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
def test_train_grpo_dry_run_at_paper_scale(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uses other questions and another start policy, as those of the paper are not available."""
    words = ["train-grpo", "--config", str(CONFIGS / f"{name}-paper.yaml"), "--dry-run"]
    words += ["--run", str(tmp_path / "run"), "--limit", "5"]
    here = {"mix": "[]", "source": "atlas", "corpus": "null", "cities": "500", "references": "5"}
    changes = [f"data.{key}={value}" for key, value in here.items()]
    changes += ["policy.model=packaged", "training.grpo.stages=[]"]
    arguments = parser().parse_args([*words, *(w for c in changes for w in ("--set", c))])
    assert run_stage(arguments) == 0
    assert f"protocol {name}" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_r1_searcher_rates_questions_with_the_prompt_of_its_rater() -> None:
    recipe = load_recipe(CONFIGS / "r1-searcher-paper.yaml")
    instruct = recipe.agent.model_copy(update={"prompt": "instruct"})
    assert recipe.rater("run").agent == instruct


def with_little_files(name: str, folder: Path) -> Path:
    """Copies a recipe and writes all files that it names, each with a few lines."""
    recipe = load_recipe(CONFIGS / f"{name}.yaml")
    corpora = recipe.data.corpus
    for corpus in (corpora,) if isinstance(corpora, str) else corpora or ():
        write_lines(folder / corpus, PASSAGES)
    for number, part in enumerate((*(recipe.data.mix or (recipe.data,)), *recipe.evaluation.mix)):
        rows = [
            {"id": f"q{number}-{n}", "question": f"Where is {number}.{n}?", "golden_answers": ["x"]}
            for n in range(12)
        ]
        write_lines(folder / str(part.questions), rows)
    copy = folder / "recipe.yaml"
    copy.write_text((CONFIGS / f"{name}.yaml").read_text())
    return copy


def write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows) if ".jsonl" not in path.name else "\n".join(map(json.dumps, rows))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


PROCESS = ["evo-rag-paper", "reasonrag-paper"]
"""Recipes of process supervision at the scale of their papers."""


@pytest.mark.parametrize("stage", ["annotate", "eval"])
@pytest.mark.parametrize("name", PROCESS)
def test_stage_dry_runs_at_paper_scale(
    name: str, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uses short files instead of those of the paper, and the packaged model."""
    config, run = with_little_files(name, tmp_path), tmp_path / "run"
    words = [stage, "--config", str(config), "--run", str(run), "--dry-run"]
    words += ["--set", "policy.model=packaged", "--set", "evaluation.policies={a: packaged}"]
    assert run_stage(parser().parse_args(words)) == 0
    assert "questions" in capsys.readouterr().out
    assert not run.exists()


@pytest.mark.parametrize("name", PROCESS)
def test_recipes_are_evaluated_on_official_sets_and_not_on_training_files(name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}.yaml")
    trained = {part.questions: part.split for part in recipe.data.mix or (recipe.data,)}
    assert recipe.evaluation.mix
    for part in recipe.evaluation.mix:
        if (
            part.source == "popqa"
        ):  # has a single file, and the paper annotates some of its questions
            assert None not in {part.split, trained[part.questions]}
            assert part.split != trained[part.questions]
        else:
            assert part.split is None, "the set should be the whole file, not a part by hash"
            assert part.questions not in trained


@pytest.mark.parametrize("name", PROCESS)
def test_a_missing_data_file_is_named_in_the_error(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_little_files(name, tmp_path)
    gone = load_recipe(CONFIGS / f"{name}.yaml").data
    lost = (gone.mix or (gone,))[0].questions
    (tmp_path / str(lost)).unlink()
    words = ["annotate", "--config", str(config), "--run", str(tmp_path / "run"), "--dry-run"]
    assert run_stage(parser().parse_args(words)) == 2
    assert str(lost) in capsys.readouterr().out


def test_reasonrag_training_settings_are_those_of_the_published_code() -> None:
    training = load_recipe(CONFIGS / "reasonrag-published.yaml").training
    dpo = training.dpo
    assert training.lora is None
    assert (dpo.beta, dpo.lr, dpo.reference) == (0.3, 1e-6, "start")
    assert (dpo.schedule, dpo.warmup, dpo.max_length) == ("cosine", 0.2, 10_000)
