"""The study `recipes`: its second round, and a stop during fresh rollouts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_study_runner import Pretended, pretended
from sample_records import a_prediction

from branchwise.runs.fresh_rollouts import FreshRolloutResult
from branchwise.studies import arms, fresh_rollouts, recipes
from branchwise.types import Prediction

RIGHT = {"higher-rate-0": 5, "as-it-is-0": 3}
"""Right answers to ten questions, by policy; every other policy has two."""


def answers(policy: str) -> list[Prediction]:
    right = RIGHT.get(policy, 2)
    return [
        a_prediction(question_id=f"q{n}", em=float(n < right), policy=policy) for n in range(10)
    ]


@pytest.fixture
def requested_rollouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Requested numbers of fresh rollouts per side."""
    asked: list[int] = []

    def roll_fresh(
        call: object, run: object, pairs: object, rollouts: int, _: object
    ) -> FreshRolloutResult:
        asked.append(rollouts)
        return FreshRolloutResult({})

    monkeypatch.setattr(arms, "predictions_of", lambda runner, policy, *_: answers(policy))
    monkeypatch.setattr(recipes, "existing_run", lambda folder: SimpleNamespace(folder=folder))
    monkeypatch.setattr(recipes, "pairs_of", lambda run, table: [])
    monkeypatch.setattr(fresh_rollouts, "roll_fresh", roll_fresh)
    return asked


def runner_in(folder: Path) -> Pretended:
    runner = pretended("real-dpo", folder / "real-dpo")
    return Pretended(runner.context, (0,))


def test_dev_chooses_the_policy_of_the_second_round(
    tmp_path: Path, requested_rollouts: list[int]
) -> None:
    runner = runner_in(tmp_path)
    recipes.recipes(runner)
    splits = [
        command.settings["evaluation.split"] for command in runner.ran if command.stage == "eval"
    ]
    assert len(splits) >= len(recipes.TRIED)
    assert set(splits) == {"dev"}
    own = [
        command for command in runner.ran if command.run == "real-dpo-second-round-higher-rate-0"
    ]
    assert [command.stage for command in own] == ["annotate", "relabel", "train-dpo", "eval"]
    assert {command.policy for command in own} == {"models/real-dpo/higher-rate-0"}
