"""The warm start's own questions: of the split `warm`, the same number of every set of a mix."""

from pathlib import Path

import pytest

from pipelines.warm_start import warm_part, warm_start
from runs.recipe_file import load_recipe
from runs.stage import StageContext
from storage.errors import ConfigError


def test_sets_of_a_mix_give_the_same_number_each() -> None:
    drawn = warm_part(load_recipe(Path("configs/real-dpo.yaml")), 200)
    assert drawn.limit == 200
    assert [(one.split, one.limit) for one in drawn.mix] == [("warm", 67)] * 3


def test_a_single_set_gives_them_all() -> None:
    drawn = warm_part(load_recipe(Path("configs/atlas.yaml")), 200)
    assert (drawn.split, drawn.limit, drawn.mix) == ("warm", 200, ())


@pytest.mark.parametrize(("recipe", "refusals"), [("atlas", 0), ("evo-rag", 4)])
def test_a_question_without_an_answer_makes_a_trace_where_a_policy_can_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, refusals: int
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    settings = load_recipe(Path(f"configs/{recipe}.yaml"), ["data.cities=500"])
    call = StageContext(settings, tmp_path / "run", dry_run=True, limit=40)
    counts = warm_start(call).totals["counts"]
    assert counts.get("refusals: unanswerable", 0) == refusals
    aside = sum(n for name, n in counts.items() if name.startswith("skipped"))
    assert counts["traces"] + aside == 36 + refusals, "one question in ten has no answer"


@pytest.mark.parametrize(
    ("recipe", "setting", "problem"),
    [
        ("arena", "data.references=0", "no question gives a trace"),
        ("atlas", "agent.protocol=reading", "cannot write traces of `reading`"),
    ],
)
def test_what_gives_no_trace_is_refused_before_training(
    recipe: str, setting: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    settings = load_recipe(Path(f"configs/{recipe}.yaml"), ["data.cities=500", setting])
    with pytest.raises(ConfigError, match=problem):
        warm_start(StageContext(settings, tmp_path / "run", limit=4))
