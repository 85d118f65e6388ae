"""`evaluation.judge` against a real loopback endpoint: each stored answer is judged once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import evaluated
from fake_endpoint import FakeEndpoint, failure
from loopback import serving
from tiny_dataset import QUESTIONS, recipe

from branchwise.base.errors import ConfigError
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.record import dump_recipe
from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Prediction

POLICIES = {"first": "policy", "second": "other"}
JUDGE_REPLIES: dict[str, str] = {}
"""Replies of the judge by answer; by default, yes for Paris and no for other answers."""


def replies(request: dict[str, Any]) -> Any:
    """Returns the right answer for the first policy, Paris for the other, or a verdict."""
    user = request["messages"][-1]["content"]
    if request["model"] == "policy":
        (gold,) = (one["answers"][0] for one in QUESTIONS if one["question"] in user)
        return f"<answer>{gold}</answer>"
    if request["model"] == "other":
        return "<answer>Paris</answer>"
    answer = user.rpartition("Response: ")[2]
    said = JUDGE_REPLIES.get(answer, "Yes." if answer == "Paris" else "no")
    return failure(400, said) if said == "broken" else said


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    JUDGE_REPLIES.clear()
    with serving(replies, models=(*POLICIES.values(), "judge")) as served:
        yield served


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, own_cache: None) -> Path:
    questions = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    asking = {"policies": POLICIES, "set": questions}
    judge = {"engine": "openai", "model": "judge", "base_url": endpoint.base_url}
    return recipe(tmp_path, endpoint.base_url, evaluation=asking, judge=judge)


def predictions(run: Path) -> list[Prediction]:
    (name,) = {path.stem for path in (run / "eval").glob("*.json")}
    tables = (read_parts(run, f"eval/{policy}/{name}/predictions") for policy in POLICIES)
    return [row for table in tables for row in table_to_records(table, Prediction)]


def judge_calls(endpoint: FakeEndpoint) -> list[list[dict[str, str]]]:
    return [r["messages"] for r in endpoint.requests if r["model"] == "judge"]


JUDGED = "evaluation.judge={}"


def test_no_judge_is_called_if_none_is_set(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run = tmp_path / "run"
    assert evaluated(config, run) == 0
    assert not judge_calls(endpoint)
    assert {(row.judge, row.judge_model) for row in predictions(run)} == {(None, None)}
    (table,) = (run / "eval").glob("*.md")
    assert "judge" not in table.read_text()


def test_stored_answers_are_judged_once(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert evaluated(config, run) == 0
    before, answered = predictions(run), len(endpoint.requests)
    assert evaluated(config, run, JUDGED) == 0
    rows, calls = predictions(run), judge_calls(endpoint)
    assert len(endpoint.requests) == answered + len(calls), "a policy was called again"
    assert len(calls) == 10, "both policies give the same answer, Paris, to two questions"
    assert "judge: 12 answers, at most 10 calls of judge" in capsys.readouterr().out
    assert [row.judge for row in rows] == [float(row.prediction == "Paris") for row in rows]
    assert {row.judge_model for row in rows} == {"judge"}
    bare = [row.model_copy(update={"judge": None, "judge_model": None}) for row in rows]
    assert bare == before
    system, user = calls[0]
    assert "one word" in system["content"]
    assert user["content"].startswith("Correct answers: "), (
        "this prompt does not contain the question"
    )
    (table,) = (run / "eval").glob("*.md")
    assert "| EM | F1 | cover-EM | judge |" in table.read_text()
    (about,) = (run / "eval").glob("*.json")
    assert json.loads(about.read_text())["judge"]["prompt"] == "yes-no"
    made = len(endpoint.requests)
    assert evaluated(config, run, JUDGED) == 0
    assert len(endpoint.requests) == made
    assert predictions(run) == rows


def test_replies_that_cannot_be_read_give_no_verdict(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    JUDGE_REPLIES["Tokyo"], JUDGE_REPLIES["Yen"] = "yes and no", "broken"
    assert evaluated(config, run, JUDGED) == 4
    rows = predictions(run)
    assert {row.judge for row in rows if row.prediction in JUDGE_REPLIES} == {None}
    assert {row.judge for row in rows if row.prediction == "Paris"} == {1.0}
    told = capsys.readouterr().out
    assert "judge: 4 of 10 calls returned no verdict: RefusedRequest 2, neither word 2" in told
    assert "judge: 4 of 12 answers lack a readable verdict" in told
    made = len(judge_calls(endpoint))
    JUDGE_REPLIES["Yen"] = "no"
    assert evaluated(config, run, JUDGED, "limits.max_failed_share=1") == 0
    again = [messages[-1]["content"] for messages in judge_calls(endpoint)[made:]]
    assert again == ["Correct answers: Yen\nResponse: Yen"] * 2, "only failed calls are repeated"


def test_judging_resumes_after_a_limit(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert evaluated(config, run) == 0
    answered = len(endpoint.requests)
    limit = f"limits.max_tokens={15 * (answered + 2)}"
    slow = "limits.max_questions_in_flight=1"
    assert evaluated(config, run, JUDGED, limit, slow) == 3
    assert len(judge_calls(endpoint)) == 2
    assert {row.judge for row in predictions(run)} == {None}, (
        "verdicts are stored only if all calls are done"
    )
    assert evaluated(config, run, JUDGED) == 0
    seeds = [r["seed"] for r in endpoint.requests if r["model"] == "judge"]
    assert len(set(seeds)) == len(seeds) == len(endpoint.requests) - answered
    assert evaluated(config, whole, JUDGED) == 0
    assert [row.judge for row in predictions(whole)] == [row.judge for row in predictions(run)]


def test_true_false_prompt_contains_the_question_and_the_whole_reply(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run = tmp_path / "run"
    how = "evaluation.judge={prompt: true-false, reads: reply}"
    assert evaluated(config, run, how, "limits.max_failed_share=1") == 0
    texts = [messages[-1]["content"] for messages in judge_calls(endpoint)]
    assert texts and all(text.startswith("Question: ") for text in texts)
    assert all("‹answer›" in text for text in texts), "the reply is complete, with its tags escaped"
    assert {row.judge for row in predictions(run)} == {0.0}, "no means false"


def test_failed_questions_and_missing_answers_count_as_wrong(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlucky(request: dict[str, Any]) -> Any:
        user = request["messages"][-1]["content"]
        if request["model"] == "judge":
            return "yes"
        if request["model"] == "other" and "currency" in user:
            return failure(400, "no")
        return "nothing" if "castle" in user or "money" in user else "<answer>Paris</answer>"

    run = tmp_path / "run"
    with serving(unlucky, models=(*POLICIES.values(), "judge")) as endpoint:
        here = (f"policy.base_url={endpoint.base_url}", f"judge.base_url={endpoint.base_url}")
        assert evaluated(config, run, JUDGED, *here, "limits.max_failed_share=0.5") == 0
        assert len(judge_calls(endpoint)) == 5, "one call per distinct answer to a question"
    rows = {(row.policy, row.question_id): row for row in predictions(run)}
    assert rows["first", "q6"].prediction is None
    assert (rows["first", "q6"].judge, rows["first", "q1"].judge) == (0.0, 1.0)
    (second,) = (run / "eval" / "second").glob("*/metrics.json")
    kept = json.loads(second.read_text())
    assert (kept["judge"], kept["counts"]["judge"]) == (pytest.approx(4 / 6), 6)


def test_answer_judge_inherits_settings_that_are_not_set(config: Path) -> None:
    plain = load_recipe(config, [JUDGED])
    assert plain.answer_judge == plain.judge
    warm = load_recipe(config, [JUDGED, "judge.temperature=0.7", "judge.max_new_tokens=8"])
    assert warm.answer_judge is not None
    assert (warm.answer_judge.temperature, warm.answer_judge.max_new_tokens) == (0.0, 8)
    elsewhere = ["judge.api_key_env=SECRET_ONE", "evaluation.judge.model=gpt"]
    there = load_recipe(config, [*elsewhere, "evaluation.judge.base_url=http://127.0.0.1:9/v1"])
    assert there.answer_judge is not None
    assert (there.answer_judge.model, there.answer_judge.api_key_env) == ("gpt", "OPENAI_API_KEY")
    config.write_text(dump_recipe(there))
    assert load_recipe(config) == there


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((JUDGED, "judge=null"), "evaluation.judge does not set a model"),
        (("evaluation.judge={prompt: maybe}",), "evaluation.judge.prompt"),
        (
            ("judge=null", "evaluation.judge={engine: openai, model: x}"),
            "evaluation.judge.base_url is not set",
        ),
        (
            (JUDGED, "limits.max_usd=1", "policy.price_per_million={input: 1, output: 1}"),
            "evaluation.judge.price_per_million does not set",
        ),
    ],
)
def test_incomplete_judge_settings_are_refused(
    config: Path, settings: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load_recipe(config, list(settings))
