"""`eval` against a real loopback endpoint: resuming, limits, failures and the result tables."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint, failure
from loopback import serving
from stored_rows import run_sql
from tiny_dataset import QUESTIONS, policy, recipe

from branchwise.report.facts import evaluations
from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Prediction

POLICIES = {"first": "policy", "second": "other"}


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(policy, models=tuple(POLICIES.values())) as served:
        yield served


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, own_cache: None) -> Path:
    return recipe(tmp_path, endpoint.base_url, evaluation=asking(tmp_path))


def asking(folder: Path) -> dict[str, Any]:
    questions = {"source": "jsonl", "questions": str(folder / "questions.jsonl"), "split": None}
    return {"policies": POLICIES, "set": questions}


def evaluated(config: Path, run: Path, *more: str) -> int:
    return branchwise("eval", config, run, *more)


def predictions(run: Path, name: str) -> list[Prediction]:
    (folder,) = (run / "eval" / name).iterdir()
    table = read_parts(run, f"eval/{name}/{folder.name}/predictions")
    return table_to_records(table, Prediction)


def failures(run: Path) -> list[tuple[object, ...]]:
    sql = "select question_id, stage, kind from failures order by all"
    return list(run_sql(run, sql).rows)


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
        assert sorted(row.question_id for row in rows[name]) == [f"q{n}" for n in range(1, 7)]
    (kept,) = (run / "eval").glob("jsonl-all-*.md")
    table = kept.read_text()
    assert all(name in table for name in POLICIES)
    assert "second" in capsys.readouterr().out
    assert evaluated(config, run) == 0
    assert len(endpoint.requests) == made


def test_rows_keep_the_order_of_the_questions_when_the_first_takes_longest(
    tmp_path: Path, config: Path, own_cache: None
) -> None:
    assert evaluated(config, tmp_path / "run") == 0
    order = [row.question_id for row in predictions(tmp_path / "run", "first")]
    (longest,) = (one["question"] for one in QUESTIONS if one["id"] == order[0])

    def uneven(request: dict[str, Any]) -> str:
        user = request["messages"][-1]["content"]
        return policy(request) if longest in user else "<answer>Paris</answer>"

    with serving(uneven, models=tuple(POLICIES.values())) as endpoint:
        again = recipe(tmp_path, endpoint.base_url, evaluation=asking(tmp_path))
        assert evaluated(again, tmp_path / "uneven") == 0
    rows = predictions(tmp_path / "uneven", "first")
    assert [row.question_id for row in rows] == order
    assert rows[0].steps > max(row.steps for row in rows[1:])


def test_failures_are_printed_stored_and_counted_as_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"other"}

    def unlucky(request: dict[str, Any]) -> Any:
        user = request["messages"][-1]["content"]
        if request["model"] in broken and "currency" in user:
            return failure(400, "this model's maximum context length is exceeded")
        return policy(request)

    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    with serving(unlucky, models=tuple(POLICIES.values())) as endpoint:
        config = recipe(tmp_path, endpoint.base_url, evaluation=asking(tmp_path))
        assert evaluated(config, run) == 4, "one failure in six is more than 5 %"
        told = capsys.readouterr().out
        assert "1 of 6 questions failed under second and count as wrong: RefusedRequest 1" in told
        assert failures(run) == [("q3", "eval second", "RefusedRequest")]
        (kept,) = (run / "eval").glob("*.md")
        assert "| 6 | 1 |" in kept.read_text()
        assert evaluated(config, run, "--set", "limits.max_failed_share=0.2") == 0
        broken.clear()
        assert evaluated(config, run) == 0
    assert failures(run) == []


def test_a_policy_that_always_fails_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlucky(request: dict[str, Any]) -> Any:
        return failure(400, "no") if request["model"] == "other" else policy(request)

    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    with serving(unlucky, models=tuple(POLICIES.values())) as endpoint:
        config = recipe(tmp_path, endpoint.base_url, evaluation=asking(tmp_path))
        assert evaluated(config, run) == 4
    (kept,) = (run / "eval").glob("*.md")
    assert "| second | all | 0.0 | 0.0 | 0.0 | 6 | 6 |" in kept.read_text()
    (shown,) = evaluations(run)
    first, second = shown["rows"]
    (difference,) = shown["differences"]
    assert (difference["policy"], difference["baseline"]) == ("second", "first")
    assert difference["n"] == second["failed"] == 6
    assert difference["mean"] == -first["em"] <= 0


def test_evaluations_with_other_settings_are_stored_separately(
    tmp_path: Path, config: Path
) -> None:
    run = tmp_path / "run"
    for more in ((), ("--set", "agent.max_steps=2"), ("--set", "limits.max_concurrency=3")):
        assert evaluated(config, run, *more) == 0
    sets = sorted(path.stem for path in (run / "eval").glob("*.json"))
    steps = []
    for name in sets:
        settings = json.loads((run / "eval" / f"{name}.json").read_text())
        assert settings["policies"]["second"]["model"] == "other"
        rows = table_to_records(read_parts(run, f"eval/first/{name}/predictions"), Prediction)
        assert max(row.steps for row in rows) <= settings["agent"]["max_steps"]
        assert {row.evaluation for row in rows} == {name}
        steps.append(settings["agent"]["max_steps"])
    assert sorted(steps) == [2, 6]


def test_annotated_questions_are_refused_as_a_test_set(
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
