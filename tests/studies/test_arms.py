"""Arms of a study: failed questions of their evaluations, and costs of their trainings."""

import io
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import failure
from fake_study_runner import Command, pretended
from loopback import serving
from tiny_dataset import QUESTIONS, policy, recipe

from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.runs.studies.study_runner import StudyRunner
from branchwise.runs.terminal import Terminal
from branchwise.studies.arms import START, Arm, evaluate_arms, train_arm
from branchwise.studies.study_tables import arm_sheet
from branchwise.types import FailedPrediction


def test_failed_questions_are_included_in_the_predictions_as_wrong(
    tmp_path: Path, own_cache: None
) -> None:
    asked = str(QUESTIONS[0]["question"])

    def unlucky(request: dict[str, Any]) -> Any:
        return failure(400) if asked in request["messages"][-1]["content"] else policy(request)

    questions = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    with serving(unlucky) as endpoint:
        blocks = {"limits": {"max_failed_share": 0.5}, "evaluation": {"set": questions}}
        config = recipe(tmp_path, endpoint.base_url, **blocks)
        console = Terminal(io.StringIO())
        runner = StudyRunner(
            StageContext(load_recipe(config), tmp_path / "run", console=console), (0,)
        )
        ((start,),) = evaluate_arms(runner, (Arm(START),), {"evaluation.limit": 6})
    rows = start.predictions[0]
    assert len(rows) == 6, "every question should have a prediction"
    failed = [row for row in rows if isinstance(row, FailedPrediction)]
    assert [(row.question_id, row.source, row.em, row.f1) for row in failed] == [
        ("q1", "jsonl", 0.0, 0.0)
    ]
    row = dict(zip(arm_sheet([start]).head, arm_sheet([start]).rows[0], strict=True))
    (told,) = start.evaluations[0]["policies"]
    assert (row["questions"], row["failed"]) == (str(told["n"]), str(told["failed"])) == ("6", "1")
    assert float(row["EM"]) == pytest.approx(100 * told["em"], abs=0.05)


def test_an_arm_starts_from_the_training_before_it_and_includes_its_cost(tmp_path: Path) -> None:
    def told(command: Command) -> dict[str, Any]:
        first = "before-0" in command.arguments
        return {"examples": 3 if first else 40, "steps": 2, "seconds": 0.5, "movement": first}

    runner = pretended("evo-studies", tmp_path / "run", told=told)
    arm = Arm("late", "train-dpo", before=Arm("before", "train-dpo"))
    folder, totals = train_arm(runner, arm, 0)
    assert folder.endswith("late-0")
    starts = [one.settings.get("policy.model") for one in runner.ran if one.stage == "train-dpo"]
    assert starts == [None, "models/run/before-0"], "the second starts from the first's policy"
    assert (totals["examples"], totals["steps"], totals["seconds"]) == (43, 4, 1.0)
    assert totals["movement"] is False, "movement should be that of the last training"
