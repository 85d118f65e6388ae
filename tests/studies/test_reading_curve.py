"""The study `reading-curve`: equal traces, more reading questions, held-out evaluation."""

from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, Pretended, pretended
from sample_records import a_prediction

from branchwise.runs.studies.study_runner import StudyRunner
from branchwise.studies import reading_curve
from branchwise.types import Prediction


def answers(
    runner: StudyRunner, name: str, evaluated: Any, settings: dict[str, Any]
) -> list[Prediction]:
    """Predictions: more reading questions give more right answers; guessable ones are all right."""
    (policy,) = settings["evaluation.policies"]
    right = reading_curve.QUESTIONS.index(int(policy.removeprefix("reading-"))) + 1
    return [
        a_prediction(question_id=f"q{n}", em=float(n < right or n > 7), guessable=n > 7)
        for n in range(10)
    ]


def examples_of(command: Command) -> dict[str, Any]:
    return {"examples": 100 + command.settings.get("training.warm_start.reading.questions", 0)}


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    monkeypatch.setattr(reading_curve, "predictions_of", answers)
    return pretended("general", tmp_path / "run", told=examples_of)


def test_the_table_has_one_row_per_number_of_reading_questions(runner: Pretended) -> None:
    reading_curve.reading_curve(runner)
    lines = (runner.folder / "reading-curve-em-by-reading-questions.csv").read_text().splitlines()
    assert lines[1] == "0,100,30.0,30.0,12.5,30.0"
    assert lines[-1] == '"5,200","5,300",50.0,50.0,37.5,50.0'
    assert (runner.folder / "reading-curve.svg").is_file()
