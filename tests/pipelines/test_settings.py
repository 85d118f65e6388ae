"""`docs/settings.md` is the output of `branchwise settings`: all settings and their meaning."""

from pathlib import Path

import pytest

from branchwise.cli.command_line import parser, run_stage
from branchwise.pipelines.settings.stage import blocks, page
from branchwise.runs.recipe import Recipe
from branchwise.runs.record import flat

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
RECIPE = Recipe.model_validate({"name": "run", "difficulty": {"stages": {}}})


def test_settings_page_is_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_stage(parser().parse_args(["settings"])) == 0
    printed = capsys.readouterr().out
    kept = GUIDE.read_text(encoding="utf-8")
    assert printed == kept, "rebuild it: branchwise settings > docs/settings.md"


def test_settings_page_contains_all_settings_of_a_recipe() -> None:
    named = {f"{at}.{name}".lstrip(".") for b in blocks() for at in b.names for name in b.values}
    assert named >= set(flat(RECIPE.model_dump(mode="json"))) - {
        "judge", "verifier", "evaluation.set", "evaluation.judge", "evaluation.baseline_model",
        "policy.price_per_million", "difficulty.policy", "training.warm_start.reading",
    }  # fmt: skip
    assert {"judge.model", "verifier.model", "training.lora.r"} <= named
    of_all_names = {"rewards.schedule", "agent.max_retrievals", "mcts.branches", "retrieval.url"}
    assert {*of_all_names, "training.grpo.baseline", "data.cities"} <= named


def test_rows_contain_default_values_and_meaning() -> None:
    lines = page().splitlines()
    (alpha,) = (line for line in lines if line.startswith("| `alpha` | `0.9`"))
    assert alpha == "| `alpha` | `0.9` | number, > 0, ≤ 1 | Discount per step, in (0, 1]. |"
    judge = lines[lines.index("## `judge`, `verifier`") :]
    rows = [
        line
        for line in judge[: judge.index("## `mcts`, kind of search `tree`")]
        if line.startswith("| `")
    ]
    assert [row.split("`")[1] for row in rows] == ["temperature", "top_p", "max_new_tokens"]
