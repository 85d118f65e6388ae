"""The study `supervision`: trials on dev, own questions per seed, tests, costs and pooling."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, Pretended, pretended
from sample_records import a_call, a_prediction

from benchmarks.pooled_answers import main, pooled
from branchwise.base.errors import ConfigError
from branchwise.pipelines.study.stage import study
from branchwise.runs.folder import open_run
from branchwise.runs.stage import checked_name
from branchwise.runs.studies.study_runner import StudyRunner
from branchwise.storage.ledger_rows import Totals
from branchwise.studies import arms, supervision, supervision_rates
from branchwise.studies.arms import tree_totals
from branchwise.studies.study_tables import findings
from branchwise.types import Prediction

TREES = Totals(calls=900, output_tokens=40 * 80 * 30)
"""Totals of trees with as many tokens as 30 batches of 80 rollouts with 40 tokens each."""


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
        if not command.stage.startswith("train"):
            return {}
        model = tmp_path / command.arguments[-1]
        model.mkdir(exist_ok=True)
        drawn = {"rollouts": 80, "policy_tokens": 40, "calls": 5, "trained_tokens": 70}
        read = drawn if command.stage == "train-grpo" else {}
        lines = [{"step": n, "tokens": 50.0 * n, **read} for n in (1, 2)]
        (model / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"model": str(model), "seconds": 1800.0, "pairs": 10, "examples": 10, "steps": 2}

    monkeypatch.setattr(arms, "predictions_of", answers)
    monkeypatch.setattr(supervision, "tree_totals", lambda runner: TREES)
    monkeypatch.setattr(supervision_rates, "tree_totals", lambda runner: TREES)
    return pretended("supervision", tmp_path / "supervision", told=told)


def test_every_kind_of_arm_tries_three_learning_rates_on_dev(runner: Pretended) -> None:
    supervision_rates.supervision_rates(runner)
    assert not runner.asked("test")
    tried = runner.asked("dev")
    for kind in supervision_rates.KINDS:
        assert sum(one.startswith(f"{kind.name}-") for one in tried) == 3, kind.name
    (table,) = runner.folder.glob("*trials-on-dev.csv")
    assert len(table.read_text().splitlines()) == 1 + 1 + 3 * len(supervision_rates.KINDS)


def test_arms_on_rollouts_have_their_own_run_folders(runner: Pretended) -> None:
    supervision.supervision(runner)
    folders = [one.run for one in runner.ran if "rollouts" not in str(one.settings)
               and one.stage == "train-grpo"]  # fmt: skip
    assert len(folders) == len(set(folders)) == 2 * 3
    (start,) = (one for one in runner.ran if one.stage == "warm-start")
    searching = [one for one in runner.ran if one.run.endswith("search-r1-grpo")]
    assert {one.policy for one in searching} == {f"models/{start.run}/warm-start"}


def test_test_is_evaluated_once_per_arm_and_seed(runner: Pretended) -> None:
    supervision.supervision(runner)
    asked = runner.asked("test")
    assert not runner.asked("dev")
    assert len(asked) == len(set(asked)) == 2 + 2 * (len(supervision.ARMS) - 2)
    assert {one.settings["seed"] for one in runner.ran if one.stage == "eval"} == {0}


async def test_evaluations_do_not_count_as_costs_of_trees(tmp_path: Path) -> None:
    own = pretended("supervision", tmp_path / "run")
    run = open_run(own.context.run, own.recipe, {})
    with run.open_ledger() as ledger:
        for n, path in enumerate(("tree/0", "rollout/0/1", "eval/dpo", "grpo/0")):
            await ledger.put(a_call(key=f"k{n}", path=path, output_tokens=10**n))
    trees = tree_totals(own)
    assert (trees.calls, trees.output_tokens) == (2, 11)


def test_arms_and_seeds_of_several_machines_give_one_table(
    runner: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    supervision.supervision(runner)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder, seed in zip(folders, "10", strict=True):  # seeds in another order
        folder.mkdir()
        for name in ("answers", "costs-by-seed"):
            head, *lines = (runner.folder / f"supervision-{name}.csv").read_text().splitlines()
            own = [head, *(line for line in lines if line.split(",")[1] == seed)]
            (folder / f"supervision-{name}.csv").write_text("\n".join(own) + "\n")
    parts = [folder / "supervision-answers.csv" for folder in folders]
    done = pooled(supervision.ARMS, parts)
    assert {one.arm.name: len(one.predictions) for one in done} == {
        arm.name: 2 if arm.trainer else 1 for arm in supervision.ARMS
    }
    assert {row.f1 for one in done for rows in one.predictions.values() for row in rows} == {0.5}
    claim = supervision.CLAIMS[0]
    (found,) = findings({one.arm.name: one for one in done}, [claim], 0)
    assert found.em.mean == pytest.approx(4 / 20)
    with pytest.raises(ConfigError, match=r"answers\.csv: another file has dpo with seed 1"):
        pooled(supervision.ARMS, [parts[0], parts[0]])
    with pytest.raises(ConfigError, match="has no arm dpo"):
        pooled(supervision.ARMS[:1], parts)
    plot = tmp_path / "costs.svg"
    words = ["pooled", "supervision", *map(str, folders), "--plot", str(plot)]
    monkeypatch.setattr("sys.argv", words)
    main()
    printed = capsys.readouterr().out
    assert "| dpo | 2 | 45.00 | 900.00 |" in printed
    assert "Not measured" not in printed
    assert plot.is_file()


def test_the_name_of_every_arm_is_a_valid_folder_name() -> None:
    for arm in supervision.ARMS:
        assert checked_name(arm.name) == arm.name


def test_wanted_arms_run_alone_and_unknown_ones_are_rejected(runner: Pretended) -> None:
    own = replace(runner, arms=("grpo",))
    supervision.supervision(own)
    assert {one.stage for one in own.ran} == {"train-grpo", "eval"}
    with pytest.raises(ConfigError, match="has the arms warm-start, dpo"):
        study(runner.context, "supervision", arms=("ppo",))
    with pytest.raises(ConfigError, match="runs all its arms together"):
        study(runner.context, "atlas-dpo", arms=("dpo",))
