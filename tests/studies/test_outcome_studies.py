"""The studies of ARENA, Eval-RAR and R1-Searcher: one start, one change per arm, one test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, pretended
from sample_records import a_prediction

from branchwise.analysis.comparison import Scored
from branchwise.base.sheet import NONE
from branchwise.pipelines.study.stage import study_named
from branchwise.studies import arms, outcome_rl
from branchwise.studies.arms import Arm, EvaluatedArm


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
            {"step": 2 * n + 1, "rollouts": 8, "em": n / 10, "f1": n / 10} for n in range(4)
        ]
        lines += [{"step": step, "rollouts": 8} for step in (9, 11)]  # batches without EM
        lines.insert(1, {"step": 2})  # the second update of the first batch
        (model / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"model": str(model)}

    return told


@pytest.mark.parametrize("name", ["arena", "eval-rar", "r1-searcher"])
def test_a_study_trains_evaluates_and_tabulates_every_arm(
    name: str, told: Any, tmp_path: Path
) -> None:
    runner = replace(pretended(name, tmp_path / name, told=told), seeds=(0,))
    study_named(name).carry_out(runner)
    trained = [one.arguments[-1] for one in runner.ran if one.stage == "train-grpo"]
    assert runner.stages() == ["warm-start", "eval", *["train-grpo", "eval"] * len(trained)]
    assert runner.asked("test") == ["warm-start", *trained]
    for command in runner.ran:
        runner.recipe_with(command.settings)
    report = (runner.folder / f"{name}.md").read_text()
    curve = "f1" if name == "r1-searcher" else "em"
    for policy in trained:
        assert f"| {policy.removesuffix('-0')} | {curve} | 0.050 | 0.250 | {NONE} |" in report
    assert (runner.folder / f"{name}-curves.svg").exists()


def test_verdict_sheet_averages_over_the_answers_with_a_verdict() -> None:
    rows: list[Scored] = [
        a_prediction(question_id="q1", copied=0.2, format_ok=True),
        a_prediction(question_id="q2", copied=None, format_ok=False),
    ]
    done = EvaluatedArm(Arm("grpo"), predictions={0: rows, 1: rows})
    sheet = outcome_rl.verdict_sheet([done])
    cells = dict(zip(sheet.head, sheet.rows[0], strict=True))
    assert (cells["format_ok"], cells["copied"], cells["relevance"]) == ("50.0", "20.0", NONE)
