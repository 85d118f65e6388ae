"""What the study `supervision` promises: equal trials, equal budgets, one test per arm and seed."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, Pretended, pretended
from sample_records import a_prediction

from experiments import arms, supervision
from experiments.arms import Arm, EvaluatedArm
from runs.studies.study_runner import StudyRunner
from storage.records import Prediction

TREES = {"calls": 900, "output_tokens": 40 * 80 * 30}
"""Totals of trees that took the tokens of 30 batches, if a rollout takes 40."""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    def answers(
        runner: StudyRunner, policy: str, evaluated: Any, settings: dict[str, Any]
    ) -> list[Prediction]:
        right = 9 if policy.startswith("dpo") else 5
        return [
            a_prediction(question_id=f"q{n}", em=float(n < right), output_tokens=40)
            for n in range(20)
        ]

    def told(command: Command) -> dict[str, Any]:
        if command.stage == "annotate":
            return TREES
        if not command.stage.startswith("train"):
            return {}
        model = tmp_path / command.arguments[-1]
        model.mkdir(exist_ok=True)
        lines = [{"step": n, "tokens": 50.0 * n, "rollouts": 80, "policy_tokens": 40, "calls": 5}
                 for n in (1, 2)]  # fmt: skip
        (model / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"model": str(model), "seconds": 1800.0, "pairs": 10, "examples": 10, "steps": 2}

    monkeypatch.setattr(arms, "predictions_of", answers)
    return pretended(
        "supervision",
        tmp_path / "supervision",
        told=told,
        scored=lambda policy: {"em": 0.6 if "0.0002" in policy else 0.5},
    )


def test_every_arm_tries_as_many_learning_rates_on_dev(runner: Pretended) -> None:
    supervision.supervision(runner)
    tried = runner.asked("dev")
    for name in (*supervision.OF_TREES, *supervision.ROLLED_OUT, "search-r1-grpo"):
        assert sum(one.startswith(f"{name}-") for one in tried) == 3, name


def test_the_test_is_asked_once_per_arm_and_seed_with_the_best_rate(runner: Pretended) -> None:
    supervision.supervision(runner)
    own = [one for one in runner.ran if one.run == "supervision" and one.stage == "eval"]
    asked = [
        policy
        for one in own
        if one.settings["evaluation.split"] == "test"
        for policy in one.settings["evaluation.policies"]
    ]
    assert len(asked) == len(set(asked)) == 1 + 2 * 8
    trained = [one.arguments[-1] for one in runner.ran if one.stage.startswith("train")]
    assert {"dpo-0.0002-0", "dpo-0.0002-1"} <= set(trained)
    assert "dpo-0.0001-1" not in trained


def test_rollouts_generate_as_many_tokens_as_the_trees(runner: Pretended) -> None:
    assert supervision.batches_of(runner, TREES) == 30
    arm = supervision.candidates("grpo")[0]
    short, long = supervision.with_budgets([arm.__class__(**{**vars(arm), "name": "grpo"})], 30)
    assert (short.name, short.training["batches"]) == ("grpo-questions", 20)
    assert (long.name, long.training["batches"]) == ("grpo-tokens", 30)


def test_costs_are_those_of_trees_or_of_rollouts(runner: Pretended, tmp_path: Path) -> None:
    trained = runner.run_stage("train-grpo", "--name", "one")
    grpo = EvaluatedArm(Arm("grpo-tokens", "train-grpo"), trainings=[trained])
    assert supervision.cost_of(runner, grpo, TREES) == supervision.Cost(800, 6400, 100, 0.5)
    dpo = EvaluatedArm(Arm("dpo", "train-dpo"), trainings=[trained])
    assert supervision.cost_of(runner, dpo, TREES) == supervision.Cost(900, 96000, 100, 0.5)


def test_the_two_best_arms_are_repeated_on_other_questions(runner: Pretended) -> None:
    supervision.supervision(runner)
    again = [one for one in runner.ran if one.run == "supervision-replication"]
    assert again[0].stage == "annotate"
    assert {one.arguments[-1].rsplit("-", 1)[0] for one in again if "train" in one.stage} >= {"dpo"}
    costs = (runner.folder / "supervision-costs.csv").read_text()
    assert costs.startswith("arm,calls,generated tokens,trained tokens,hours")
