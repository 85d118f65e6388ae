"""The studies of ARENA, Eval-RAR and R1-Searcher: one start, one change per arm, one test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, pretended
from sample_records import a_prediction

from analysis.comparison import Scored
from analysis.table import NONE
from experiments import arena, arms, eval_rar, outcome_rl, r1_searcher
from experiments.arms import Arm, EvaluatedArm


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    rows = [a_prediction(question_id=f"q{n}", em=float(n % 2)) for n in range(20)]
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)

    def told(command: Command) -> dict[str, Any]:
        if command.stage != "train-grpo":
            return {}
        model = tmp_path / command.arguments[-1]
        model.mkdir()
        lines: list[dict[str, Any]] = [
            {"step": 2 * n + 1, "rollouts": 8, "em": n / 10, "format_ok": 1.0} for n in range(6)
        ]
        lines[0]["kl"] = 0.5  # the other batches lack it
        lines.insert(1, {"step": 2})  # the second update of the first batch
        (model / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"model": str(model)}

    return told


def test_arenas_arms_start_from_one_policy_and_change_one_setting(
    told: Any, tmp_path: Path
) -> None:
    runner = replace(pretended("arena", tmp_path / "arena", told=told), seeds=(0,))
    arena.STUDY.carry_out(runner)
    assert runner.stages() == ["warm-start", "eval", *["train-grpo", "eval"] * 3]
    trained = {
        one.arguments[-1]: one.settings for one in runner.ran if one.stage == "train-grpo"
    }  # fmt: skip
    assert trained == {
        "grpo-0": {"seed": 0},
        "no-bonus-0": {"seed": 0, "rewards.components": ["format", "accuracy", "relevance"]},
        "k3-0": {"seed": 0, "training.grpo.kl": "k3"},
    }
    assert runner.asked("test") == ["warm-start", *trained]
    table = (runner.folder / "arena.md").read_text()
    assert "| grpo | em | 0.050 | 0.250 | 0.450 |" in table
    assert f"| grpo | kl | 0.500 | {NONE} | {NONE} |" in table
    assert (runner.folder / "arena-curves.svg").exists()


def test_eval_rar_compares_its_reward_with_em_for_every_seed(told: Any, tmp_path: Path) -> None:
    runner = pretended("eval-rar", tmp_path / "eval-rar", told=told)
    eval_rar.STUDY.carry_out(runner)
    trained = [one.settings for one in runner.ran if one.stage == "train-grpo"]
    rewards = [one.get("rewards.reward", "eval-rar") for one in trained]
    assert rewards == ["eval-rar", "em"] * 2
    assert [one["seed"] for one in trained] == [0, 0, 1, 1]


def test_r1_searcher_trains_both_stages_as_long_as_the_second_alone(
    told: Any, tmp_path: Path
) -> None:
    runner = replace(pretended("r1-searcher", tmp_path / "r1-searcher", told=told), seeds=(0,))
    r1_searcher.STUDY.carry_out(runner)
    both, unpunished, alone = [one.settings for one in runner.ran if one.stage == "train-grpo"]
    recipe = runner.recipe.training.grpo
    assert both == {"seed": 0, "rewards.format_failure": -2.0}
    assert unpunished == {"seed": 0}
    assert runner.recipe.rewards.model_dump()["format_failure"] == 0.0
    assert alone["rewards.stage"] == 2
    assert alone["training.grpo.stages"] == []
    batches = sum(stage.batches or recipe.batches for stage in recipe.stages)
    assert alone["training.grpo.batches"] == batches


def test_verdict_sheet_averages_over_the_answers_with_a_verdict() -> None:
    rows: list[Scored] = [
        a_prediction(question_id="q1", copied=0.2, format_ok=True),
        a_prediction(question_id="q2", copied=None, format_ok=False),
    ]
    done = EvaluatedArm(Arm("grpo"), predictions={0: rows, 1: rows})
    sheet = outcome_rl.verdict_sheet([done])
    cells = dict(zip(sheet.head, sheet.rows[0], strict=True))
    assert (cells["format_ok"], cells["copied"], cells["relevance"]) == ("50.0", "20.0", NONE)
