"""The study `real-dpo`: its own warm start, one pooled test set, and baselines."""

from pathlib import Path

import pytest
from fake_study_runner import Pretended, pretended
from sample_records import a_prediction

from branchwise.base.errors import ConfigError
from branchwise.runs.question_set import data_settings
from branchwise.runs.recipe_file import load_recipe
from branchwise.sources.load import load_split
from branchwise.studies import arms, real_dpo
from branchwise.types import Prediction

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
SETS = ("2wiki", "hotpotqa", "musique")


def answers(policy: str) -> list[Prediction]:
    """Predictions on three sets; those of hotpotqa are right, the others wrong."""
    return [
        a_prediction(question_id=f"q{n}", source=SETS[n % 3], em=float(n % 3 == 1), policy=policy)
        for n in range(30)
    ]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    for module in (arms, real_dpo):
        monkeypatch.setattr(module, "predictions_of", lambda runner, policy, *_: answers(policy))
    return pretended("real-dpo", tmp_path / "real-dpo")


def test_another_start_policy_is_rejected_before_any_stage_runs(tmp_path: Path) -> None:
    elsewhere = pretended("real-dpo", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"--set policy\.model=models/elsewhere/warm-start"):
        real_dpo.real_dpo(elsewhere)
    assert elsewhere.ran == []
    start = "policy.model=models/elsewhere/warm-start"
    named = pretended("real-dpo", tmp_path / "elsewhere", start)
    arms.make_start(named)
    assert named.stages() == ["warm-start"]


def test_baselines_are_reported_with_the_arms_and_sets_as_strata(runner: Pretended) -> None:
    real_dpo.real_dpo(runner)
    assert runner.asked("test")[:3] == ["base", "warm-start", "same-again"]
    assert runner.asked("dev") == [], "the study chooses nothing, so dev should be unused"
    arms_table = (runner.folder / "real-dpo-arms.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in arms_table[1:6]] == ["base", *real_dpo.BASELINES]
    head, *rows = (runner.folder / "real-dpo-strata.csv").read_text().splitlines()
    assert head.split(",")[:4] == ["arm", *SETS]
    assert {row.split(",", 1)[1][:16] for row in rows} == {"0.0,100.0,0.0,–,"}


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real sets are not beside the checkout")
def test_strata_cover_every_question_of_the_real_sets() -> None:
    recipe = load_recipe(Path("configs/real-dpo.yaml"), [])
    found = tuple(
        one.model_copy(update={"questions": str(SHARED / Path(str(one.questions)).name)})
        for one in recipe.data.mix
    )
    data = recipe.data.model_copy(update={"mix": found})
    asked = load_split(data_settings(recipe.model_copy(update={"data": data})), "test", recipe.seed)
    rows = [a_prediction(question_id=q.id, source=q.source) for q in asked]
    by_set = [sum(map(stratum.holds, rows)) for stratum in real_dpo.STRATA[:3]]
    assert sum(by_set) == len(rows)
    assert min(by_set) > 100
    assert len(rows) <= recipe.evaluation.limit, "the limit should not cut the pooled test"
