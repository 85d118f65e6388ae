"""Sanity check of every EVO-RAG recipe: preferences of Refinement once all gold is found."""

from pathlib import Path

import pytest

from branchwise.analysis.suppression import simulate_suppression
from branchwise.runs.curriculum.cycle_report import settings_of
from branchwise.runs.recipe_file import load_recipe

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SHIPPED = [path for path in sorted(CONFIGS.glob("*.yaml")) if "scheme: evo-rag" in path.read_text()]
OUTRANKED = {
    "a right answer, a wrong one",
    "a right answer, refusing wrongly",
    "answering, searching again first",
}
LITERAL = {"evo-rag-paper"}
"""Recipes that reward repeated hits, as the paper does, and so prefer to search again early."""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_right_answer_ranks_highest_once_all_gold_is_in_context(path: Path) -> None:
    recipe = load_recipe(path)
    settings = settings_of(recipe)["refinement"]
    rows = simulate_suppression(settings, recipe.agent.max_steps, min_gap=0.0, overlap=0.25)
    turned = {row.comparison for row in rows if row.gap <= 0} & OUTRANKED
    assert turned == ({"answering, searching again first"} if path.stem in LITERAL else set())
