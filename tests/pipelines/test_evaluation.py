"""Evaluation of baselines and a policy: same questions, table and ledger; repeated draws."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import evaluated
from fake_endpoint import FakeEndpoint
from loopback import serving
from tiny_dataset import policy, recipe, write_rows

from branchwise.base.errors import ConfigError
from branchwise.runs.recipe_file import load_recipe
from branchwise.storage.manifest import load_manifest
from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Prediction

BASELINES = ("majority", "closed-book", "one-shot", "oracle")
QUESTIONS = [
    {
        "id": f"q{n}",
        "question": f"Which money is in drawer {n} in Osaka?",
        "answers": ["Euro" if n % 3 else "Yen"],
        "supporting_ids": ["japan"] if n % 2 else [],
    }
    for n in range(60)
]


def reading(request: dict[str, Any]) -> str:
    """Policy and baselines: given passages, it answers with the currency that they name."""
    system, user = request["messages"][0]["content"], request["messages"][-1]["content"]
    if "from the passages" in system:
        return f"<answer>{'Yen' if 'Yen' in user else 'Euro'}</answer>"
    return "<answer>Dollar</answer>" if "from what you know" in system else policy(request)


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(reading, models=("policy", "untrained")) as served:
        yield served


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, own_cache: None) -> Path:
    questions = tmp_path / "questions.jsonl"
    asked = {"source": "jsonl", "questions": str(questions), "split": "test"}
    evaluation = {"limit": 8, "baselines": BASELINES, "baseline_model": "untrained", "set": asked}
    path = recipe(tmp_path, endpoint.base_url, evaluation=evaluation)
    write_rows(questions, *QUESTIONS)
    return path


def predictions(run: Path, policy: str) -> list[Prediction]:
    tables = {part.table for part in load_manifest(run).parts}
    named = [t for t in tables if t.startswith(f"eval/{policy}/") and t.endswith("/predictions")]
    return [row for t in named for row in table_to_records(read_parts(run, t), Prediction)]


def test_baselines_are_evaluated_on_the_questions_of_the_policies(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert evaluated(config, run) == 0
    rows = {name: predictions(run, name) for name in ("policy", *BASELINES)}
    asked = [row.question_id for row in rows["policy"]]
    assert len(asked) == 8
    known = [name for name in asked if int(name[1:]) % 2]
    for name in BASELINES:
        assert [r.question_id for r in rows[name]] == (known if name == "oracle" else asked)
    told = {name: {row.prediction for row in rows[name]} for name in BASELINES}
    assert (told["majority"], told["closed-book"], told["oracle"]) == (
        ({"euro"}, {"Dollar"}, {"Yen"})
    )
    assert {row.supporting_recall for row in rows["oracle"]} == {1.0}
    assert {(row.steps, row.searches) for row in rows["one-shot"]} == {(1, 0)}
    models = [r["model"] for r in endpoint.requests if "drawer" in r["messages"][-1]["content"]]
    assert models.count("untrained") == 8 + 8 + len(known)
    (kept,) = (run / "eval").glob("jsonl-test-*.md")
    table = kept.read_text()
    assert re.search(rf"\| oracle \| all \| [\d. |]+ \| {len(known)} \|", table)
    assert "| policy − one-shot | all | 8 |" in table
    assert "one-shot − " not in table
    said = capsys.readouterr().out
    assert f"oracle: {8 - len(known)} questions left out, whose gold passages are unknown" in said
    made = len(endpoint.requests)
    assert evaluated(config, run) == 0
    assert len(endpoint.requests) == made


def test_an_evaluation_of_several_sets_has_rows_for_every_source(
    tmp_path: Path, config: Path
) -> None:
    asked = {"id": "b1", "question": "Which money is in Japan?", "golden_answers": ["Yen"]}
    write_rows(tmp_path / "bamboogle.jsonl", asked)
    mix = [
        {"source": "jsonl", "questions": "questions.jsonl", "split": None, "limit": 3},
        {"source": "bamboogle", "questions": "bamboogle.jsonl", "split": None},
    ]
    blocks = json.loads(config.read_text())
    config.write_text(json.dumps({**blocks, "evaluation": {"mix": mix}}))
    run = tmp_path / "run"
    assert evaluated(config, run) == 0
    rows = predictions(run, "policy")
    assert sorted(row.source for row in rows) == ["bamboogle", "jsonl", "jsonl", "jsonl"]
    (table,) = (run / "eval").glob("jsonl+bamboogle-all-*.md")
    assert "bamboogle" in table.read_text()


def test_a_limit_stops_between_and_within_baselines(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    evaluated(config, whole)
    made = len(endpoint.requests)
    policies = sum(r["model"] == "policy" for r in endpoint.requests)
    limit = f"limits.max_tokens={15 * (policies + 10)}"
    slow = "limits.max_questions_in_flight=1"
    assert evaluated(config, parts, limit, slow) == 3
    assert len(endpoint.requests) - made == policies + 10
    assert {p.name for p in (parts / "eval").iterdir() if p.is_dir()} == {
        *("policy", "majority", "closed-book"),
    }
    assert evaluated(config, parts) == 0
    assert len(endpoint.requests) == 2 * made
    for name in ("policy", *BASELINES):
        told = [(row.question_id, row.prediction) for row in predictions(parts, name)]
        assert told == [(row.question_id, row.prediction) for row in predictions(whole, name)]


def test_another_draw_makes_new_calls_and_has_its_own_files(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run, alone = tmp_path / "run", "evaluation.baselines=[closed-book]"
    assert evaluated(config, run, alone) == 0
    made = len(endpoint.requests)
    assert evaluated(config, run, alone, "evaluation.draw=1") == 0
    assert len(endpoint.requests) > made
    sets = {path.stem: json.loads(path.read_text()) for path in (run / "eval").glob("*.json")}
    assert sorted(one["draw"] for one in sets.values()) == [0, 1]
    seeds = [r["seed"] for r in endpoint.requests if "from what you know" in str(r["messages"])]
    assert len(seeds) == len(set(seeds)) == 16, "every draw should have its own seeds"
    again = len(endpoint.requests)
    assert evaluated(config, run, alone, "evaluation.draw=1") == 0
    assert len(endpoint.requests) == again


def test_another_setting_of_the_baseline_model_is_another_evaluation(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run, alone = tmp_path / "run", "evaluation.baselines=[closed-book]"
    for limit in (64, 400):
        model = f"evaluation.baseline_model={{model: untrained, max_new_tokens: {limit}}}"
        assert evaluated(config, run, alone, model) == 0
    asked = [r["max_tokens"] for r in endpoint.requests if r["model"] == "untrained"]
    assert sorted(asked) == [64] * 8 + [400] * 8
    assert len(list((run / "eval" / "closed-book").iterdir())) == 2


def test_majority_has_no_predictions_if_the_source_has_no_other_questions(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    everything = ("evaluation.set.split=null", "evaluation.limit=60")
    assert evaluated(config, run, *everything, "evaluation.baselines=[majority]") == 0
    assert "majority: 60 questions left out" in capsys.readouterr().out
    assert predictions(run, "majority") == []


def test_majority_of_an_own_set_comes_from_the_training_questions(
    tmp_path: Path, config: Path
) -> None:
    training = [{**row, "answers": ["Peso"]} for row in QUESTIONS]
    blocks = json.loads(config.read_text())
    blocks["data"] |= {"questions": write_rows(tmp_path / "train.jsonl", *training)}
    config.write_text(json.dumps(blocks))
    asked = "evaluation.set.split=null"
    assert evaluated(config, tmp_path / "run", asked, "evaluation.baselines=[majority]") == 0
    assert {row.prediction for row in predictions(tmp_path / "run", "majority")} == {"peso"}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("evaluation.policies={oracle: policy}", "has the same name as a baseline"),
        ("evaluation.baselines=[oracle, oracle]", "names a baseline twice"),
        ("evaluation.baselines=[random]", "closed-book, majority, one-shot, oracle"),
        ("evaluation.draw=-1", "evaluation.draw"),
    ],
)
def test_invalid_evaluation_settings_are_rejected(config: Path, setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_recipe(config, [setting])
