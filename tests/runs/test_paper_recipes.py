"""Recipes at the papers' scale load, agree with the papers, and describe what they would do."""

from pathlib import Path

import pytest

from agent.protocols import protocol_of
from rewards.schemes import scheme_of
from runs.recipe_file import load_recipe

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
def test_a_recipe_at_the_paper_s_scale_loads(name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}-paper.yaml")
    assert recipe.agent.protocol == name
    assert name in scheme_of(recipe).protocols  # type: ignore[attr-defined]
    assert protocol_of(recipe.agent).prompts
    for part in recipe.data.mix:
        assert part.split is None, "the paper's own split, not a part by hash"


def test_r1_searcher_draws_the_paper_s_stages() -> None:
    recipe = load_recipe(CONFIGS / "r1-searcher-paper.yaml")
    stages = recipe.difficulty.stages
    assert {name: sum(wanted.values()) for name, wanted in stages.items()} == {"1": 350, "2": 8148}
    assert recipe.rater_recipe("run").agent.prompt == "instruct"
