"""`eval` against a real loopback endpoint: nothing twice, limits, a table of differences."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from little_world import policy, recipe
from loopback import serving

from pipelines.cli import parser, run_stage
from storage.parts import read_parts
from storage.records import Prediction
from storage.schemas import table_to_records

POLICIES = {"first": "policy", "second": "other"}


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(policy, models=tuple(POLICIES.values())) as served:
        yield served


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    questions = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    evaluation = {"policies": POLICIES, "bootstrap": 100, "set": questions}
    return recipe(tmp_path, endpoint.base_url, evaluation=evaluation)


def branchwise(stage: str, config: Path, run: Path, *more: str) -> int:
    arguments = [stage, "--config", str(config), "--run", str(run), *more]
    return run_stage(parser().parse_args(arguments))


def evaluated(config: Path, run: Path, *more: str) -> int:
    return branchwise("eval", config, run, *more)


def predictions(run: Path, name: str) -> list[Prediction]:
    rows = table_to_records(read_parts(run, f"eval/{name}/jsonl-all/predictions"), Prediction)
    return sorted(rows, key=lambda row: row.question_id)


def test_policies_answer_the_same_questions_once(
    tmp_path: Path,
    config: Path,
    endpoint: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    assert evaluated(config, run) == 0
    made = len(endpoint.requests)
    rows = {name: predictions(run, name) for name in POLICIES}
    for name in POLICIES:
        assert [row.question_id for row in rows[name]] == [f"q{n}" for n in range(1, 7)]
    table = (run / "eval" / "jsonl-all.md").read_text()
    assert all(name in table for name in POLICIES)
    assert "second" in capsys.readouterr().out
    assert evaluated(config, run) == 0
    assert len(endpoint.requests) == made


def test_a_limit_stops_it_and_the_rest_continues(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    evaluated(config, whole)
    made = len(endpoint.requests)
    stopped = ("--set", "limits.max_tokens=10", "--set", "limits.max_questions_in_flight=1")
    assert evaluated(config, parts, *stopped) == 3
    assert not (parts / "eval" / "first").exists(), "half an answer sheet is no result"
    assert evaluated(config, parts) == 0
    assert len(endpoint.requests) == 2 * made
    for name in POLICIES:
        told = [(row.prediction, row.steps) for row in predictions(parts, name)]
        assert told == [(row.prediction, row.steps) for row in predictions(whole, name)]


def test_questions_that_trees_were_grown_for_are_no_test(
    tmp_path: Path,
    config: Path,
    endpoint: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    assert branchwise("annotate", config, run, "--limit", "2") == 0
    made = len(endpoint.requests)
    assert evaluated(config, run) == 2
    assert "2 of 6 evaluation questions" in capsys.readouterr().out
    assert len(endpoint.requests) == made
