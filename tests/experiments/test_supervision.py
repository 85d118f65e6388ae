"""What the study `supervision` promises: equal trials, own questions per seed, one test per arm."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, Pretended, pretended
from sample_records import a_prediction

from base.errors import ConfigError
from benchmarks.pooled_answers import pooled
from experiments import arms, supervision, supervision_rates
from experiments.arms import EvaluatedArm
from experiments.report import findings
from pipelines.study import study
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
            a_prediction(question_id=f"q{n}", em=float(n < right), f1=0.5, output_tokens=40)
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
    return pretended("supervision", tmp_path / "supervision", told=told)


def test_every_kind_of_arm_tries_as_many_learning_rates_on_dev(runner: Pretended) -> None:
    supervision_rates.supervision_rates(runner)
    assert not runner.asked("test")
    tried = runner.asked("dev")
    for kind in supervision_rates.KINDS:
        assert sum(one.startswith(f"{kind.name}-") for one in tried) == 2, kind.name
    (table,) = runner.folder.glob("*trials-on-dev.csv")
    assert len(table.read_text().splitlines()) == 1 + 1 + 2 * len(supervision_rates.KINDS)


def test_rollouts_generate_as_many_tokens_as_the_trees(runner: Pretended) -> None:
    rows = [a_prediction(output_tokens=40), a_prediction(output_tokens=40)]
    start = EvaluatedArm(supervision.ARMS[0], {0: [*rows]})
    assert supervision_rates.batches_of(runner, start, TREES) == 30


def test_every_seed_has_questions_and_trees_of_its_own(runner: Pretended) -> None:
    supervision.supervision(runner)
    grown = [one.run for one in runner.ran if one.stage == "annotate"]
    assert grown == ["supervision-0", "supervision-1"]
    second = supervision.replication(runner, 1)
    assert (second.recipe.data.skip, second.recipe.data.limit) == (100, 100)
    assert supervision.searching(second).recipe.data.skip == 100


def test_the_test_is_asked_once_per_arm_and_seed(runner: Pretended) -> None:
    supervision.supervision(runner)
    asked = runner.asked("test")
    assert not runner.asked("dev")
    assert len(asked) == len(set(asked)) == 2 + 2 * (len(supervision.ARMS) - 2)
    costs = (runner.folder / "supervision-costs.csv").read_text()
    assert costs.startswith("arm,calls,generated tokens,trained tokens,hours")


def test_costs_are_those_of_trees_or_of_rollouts(runner: Pretended) -> None:
    trained = runner.run_stage("train-grpo", "--name", "one")
    trees = supervision.Trees([TREES], [0.25])
    by_name = {arm.name: EvaluatedArm(arm, trainings=[trained]) for arm in supervision.ARMS}
    of = {name: supervision.cost_of(one, trees) for name, one in by_name.items()}
    assert of["grpo-tokens"] == supervision.Cost(800, 6400, 100, 0.5)
    assert of["dpo"] == supervision.Cost(900, 96000, 100, 0.75)


def test_arms_and_seeds_of_several_machines_give_one_table(
    runner: Pretended, tmp_path: Path
) -> None:
    supervision.supervision(runner)
    whole = (runner.folder / "supervision-answers.csv").read_text().splitlines()
    parts = [tmp_path / name for name in ("a.csv", "b.csv")]
    for part, seed in zip(parts, "01", strict=True):
        own = [line for line in whole[1:] if line.split(",")[1] == seed]
        part.write_text("\n".join([whole[0], *own]) + "\n")
    done = pooled(supervision.ARMS, parts)
    assert {one.arm.name: len(one.predictions) for one in done} == {
        arm.name: 2 if arm.trainer else 1 for arm in supervision.ARMS
    }
    claim = supervision.CLAIMS[0]
    (found,) = findings({one.arm.name: one for one in done}, [claim], 0)
    assert found.em.mean == pytest.approx(4 / 20)
    with pytest.raises(ConfigError, match=r"a\.csv: another file has dpo with seed 0"):
        pooled(supervision.ARMS, [parts[0], parts[0]])
    with pytest.raises(ConfigError, match="has no arm dpo"):
        pooled(supervision.ARMS[:1], parts)


def test_wanted_arms_run_alone_and_unknown_ones_are_rejected(runner: Pretended) -> None:
    own = replace(runner, arms=("grpo-tokens",))
    supervision.supervision(own)
    assert {one.stage for one in own.ran} == {"train-grpo", "eval"}
    with pytest.raises(ConfigError, match="has the arms warm-start, dpo"):
        study(runner.context, "supervision", arms=("ppo",))
    with pytest.raises(ConfigError, match="runs all its arms together"):
        study(runner.context, "atlas-dpo", arms=("dpo",))
