"""The study `atlas-dpo`: choice on dev, one evaluation on test, and shared trees."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_study_runner import Pretended, pretended
from sample_records import a_prediction

from experiments import arms, atlas_dpo
from experiments.arms import Arm

MILD = Arm("mild", "train-dpo", {"pairs.min_gap": 0.1}, {"lr": 1e-5})
BOLD = Arm("bold", "train-dpo", {"pairs.min_gap": 0.2}, {"lr": 1e-3, "epochs": 2})


SFT = Arm("sft", "train-sft", {"pairs.min_gap": 0.3}, {"epochs": 2})
SFT_LONGER = Arm("sft-more", "train-sft", {"pairs.min_gap": 0.3}, {"epochs": 4})


def scored(policy: str) -> dict[str, float]:
    em = 0.6 if policy.startswith("bold") else 0.5
    return {"em": em, "f1": em}


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    rows = [a_prediction(question_id=f"q{n}", em=float(n % 2)) for n in range(20)]
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)
    monkeypatch.setattr(atlas_dpo, "CANDIDATES", (MILD, BOLD, replace(BOLD, name="bold-again")))
    monkeypatch.setattr(atlas_dpo, "SFT_CANDIDATES", (SFT, SFT_LONGER))
    return pretended("atlas-dpo", tmp_path / "run", scored=scored)


def test_candidates_run_on_dev_and_test_is_evaluated_once_per_arm_and_seed(
    runner: Pretended,
) -> None:
    atlas_dpo.atlas_dpo(runner)
    assert runner.asked("dev") == [
        *("mild-0", "bold-0", "bold-again-0"),
        *("sft-0", "sft-more-0"),
    ]
    trained = ["dpo", "sft", "shuffled", "answers"]
    assert runner.asked("test") == [
        *("warm-start", "same-again", *(f"{name}-0" for name in trained)),
        *(f"{name}-1" for name in trained),
    ]
    assert runner.stages().count("annotate") == 1


def test_arms_train_on_the_pairs_of_the_chosen_candidate(runner: Pretended) -> None:
    atlas_dpo.atlas_dpo(runner)
    relabelled = {one.arguments[1]: one.settings for one in runner.ran if one.stage == "relabel"}
    assert relabelled["bold"] == {"pairs.min_gap": 0.2}
    assert relabelled["shuffled"] == {"pairs.min_gap": 0.2, "pairs.order": "shuffled"}
    assert relabelled["answers"] == {"pairs.min_gap": 0.2, "pairs.actions": ["answer"]}
    assert relabelled["sft"] == {"pairs.min_gap": 0.3}
    second = [one for one in runner.ran if one.settings.get("seed") == 1]
    (sft,) = (one.settings for one in second if one.stage == "train-sft")
    assert sft == {"seed": 1, "training.sft.epochs": 2}
    dpo = [one.arguments[1] for one in second if one.stage == "train-dpo"]
    assert dpo == ["bold", "shuffled", "answers"]


def test_tables_and_plot_are_written(runner: Pretended) -> None:
    atlas_dpo.atlas_dpo(runner)
    kept = (runner.folder / "atlas-dpo.md").read_text()
    assert "dpo − warm-start (primary)" in kept
    assert (runner.folder / "atlas-dpo-claims.csv").read_text().startswith("difference,")
    assert (runner.folder / "atlas-dpo.svg").read_text().lstrip().startswith("<?xml")
