"""The study `reading-curve`: equal traces, more reading questions, held-out evaluation."""

from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Command, Pretended, pretended
from sample_records import a_prediction

from experiments import reading_curve
from runs.studies.study_runner import StudyRunner
from storage.records import Prediction


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
    monkeypatch.setattr(reading_curve, "with_passages", lambda runner: runner)
    return pretended("general", tmp_path / "run", told=examples_of)


def test_policies_differ_in_the_number_of_reading_questions(runner: Pretended) -> None:
    reading_curve.reading_curve(runner)
    assert runner.stages() == ["warm-start", "eval", "eval"] * 3
    made = [one for one in runner.ran if one.stage == "warm-start"]
    assert made[0].settings == {"training.warm_start.reading": None}
    assert [one.settings for one in made[1:]] == [
        {"training.warm_start.reading.questions": number} for number in (1300, 5200)
    ]
    assert made[1].arguments == ("--name", "reading-1300")


def test_multi_hop_questions_are_from_the_dev_splits(
    runner: Pretended,
) -> None:
    reading_curve.reading_curve(runner)
    mixes = [one.settings["evaluation.mix"] for one in runner.ran if len(one.settings) > 2]
    assert len(mixes) == 3
    for mix in mixes:
        assert [(one["source"], one["split"]) for one in mix] == [
            ("2wiki", "dev"),
            ("hotpotqa", "dev"),
            ("musique", "dev"),
        ]


def test_passages_are_from_the_test_split_of_the_first_reading_set(tmp_path: Path) -> None:
    runner = pretended("general", tmp_path / "run")
    own = reading_curve.with_passages(runner)
    assert own.context.run.name == "run-passages"
    assert (own.recipe.data.source, own.recipe.data.mix) == ("reading", ())
    assert own.recipe.data.questions == "data/reading/squad11_dev.jsonl.gz"
    assert own.recipe.evaluation.split == "test"


def test_the_table_has_one_row_per_number_of_reading_questions(runner: Pretended) -> None:
    reading_curve.reading_curve(runner)
    lines = (runner.folder / "reading-curve-em-by-reading-questions.csv").read_text().splitlines()
    assert lines[1] == "0,100,30.0,30.0,12.5,30.0"
    assert lines[-1] == '"5,200","5,300",50.0,50.0,37.5,50.0'
    assert (runner.folder / "reading-curve.svg").is_file()
