"""What the study `arena-grpo` promises: one warm start, a training a seed, test asked once."""

from pathlib import Path

import pytest
from fake_study_runner import Pretended, pretended
from sample_records import a_prediction

from experiments import arena_grpo, arms


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    rows = [a_prediction(question_id=f"q{n}", em=float(n % 2)) for n in range(20)]
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)
    return pretended("arena", tmp_path / "run")


def test_each_seed_trains_from_the_same_start_without_trees(runner: Pretended) -> None:
    arena_grpo.arena_grpo(runner)
    assert runner.stages() == ["warm-start", "eval", *["train-grpo", "eval"] * 2]
    trained = [one for one in runner.ran if one.stage == "train-grpo"]
    assert [one.arguments for one in trained] == [("--name", "grpo-0"), ("--name", "grpo-1")]
    assert [one.settings for one in trained] == [{"seed": 0}, {"seed": 1}]
    assert runner.asked("test") == ["warm-start", "grpo-0", "grpo-1"]
