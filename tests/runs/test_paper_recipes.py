"""Recipes at the papers' scale load, agree with the papers, and describe what they would do."""

from pathlib import Path

import pytest

from agent.protocols import protocol_of
from pipelines.cli import parser, run_stage
from rewards.schemes import scheme_of
from runs.recipe_file import load_recipe

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
def test_a_recipe_at_the_paper_s_scale_loads(name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}-paper.yaml")
    assert recipe.agent.protocol == name
    assert name in scheme_of(recipe).protocols
    assert protocol_of(recipe.agent).prompts
    for part in recipe.data.mix:
        assert part.split is None, "the paper's own split, not a part by hash"


@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
def test_train_grpo_describes_itself_at_the_paper_s_scale(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other questions and another start; the paper's, and a selection, are not here."""
    words = ["train-grpo", "--config", str(CONFIGS / f"{name}-paper.yaml"), "--dry-run"]
    words += ["--run", str(tmp_path / "run"), "--limit", "5"]
    here = {"mix": "[]", "source": "atlas", "corpus": "null", "cities": "500", "references": "5"}
    changes = [f"data.{key}={value}" for key, value in here.items()]
    changes += ["policy.model=packaged", "training.grpo.stages=[]"]
    arguments = parser().parse_args([*words, *(w for c in changes for w in ("--set", c))])
    assert run_stage(arguments) == 0
    assert f"protocol {name}" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_r1_searcher_draws_the_paper_s_stages() -> None:
    recipe = load_recipe(CONFIGS / "r1-searcher-paper.yaml")
    stages = recipe.difficulty.stages
    assert {name: sum(wanted.values()) for name, wanted in stages.items()} == {"1": 350, "2": 8148}
    assert recipe.rater_recipe("run").agent.prompt == "instruct"
