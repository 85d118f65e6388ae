"""The study `atlas-dpo`: one evaluation on test, and shared trees."""

from pathlib import Path

import pytest
from fake_study_runner import Pretended, pretended
from sample_records import a_prediction

from branchwise.studies import arms, atlas_dpo


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    rows = [a_prediction(question_id=f"q{n}", em=float(n % 2)) for n in range(20)]
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)
    return pretended("atlas-dpo", tmp_path / "run")


def test_test_is_evaluated_once_per_arm_and_seed(runner: Pretended) -> None:
    atlas_dpo.atlas_dpo(runner)
    trained = ["dpo", "sft", "shuffled", "answers"]
    assert runner.asked("test") == [
        *("warm-start", "same-again", *(f"{name}-0" for name in trained)),
        *(f"{name}-1" for name in trained),
    ]
    assert runner.stages().count("annotate") == 1
    assert "dpo − warm-start (primary)" in (runner.folder / "atlas-dpo.md").read_text()
    assert (runner.folder / "atlas-dpo-claims.csv").read_text().startswith("difference,")
    assert (runner.folder / "atlas-dpo.svg").read_text().lstrip().startswith("<?xml")
