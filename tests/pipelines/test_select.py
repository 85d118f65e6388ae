"""`select` against a real loopback endpoint: labels, stages, costs, refusals."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint, failure
from loopback import serving
from stored_rows import run_sql
from tiny_dataset import QUESTIONS, policy, recipe

from branchwise.analysis.difficulty import difficulty_of
from branchwise.runs.folder import existing_run
from branchwise.runs.recipe_file import load_recipe
from branchwise.sources.load import load_data
from branchwise.storage.ledger import Ledger
from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Difficulty, Failure, Question

READER = {"model": "policy", "agent": {"protocol": "arena"}}
STAGES = {"1": {"medium": 1}, "2": {"medium": 2, "difficult": 2}}
SETTINGS = {"rollouts": 8, "easy": 1, "medium": 3, "stages": STAGES}
RIGHT_AT = {"q1": 1, "q2": 2, "q3": 3, "q4": 5, "q5": 8, "q6": None}
"""Number of the first right rollout, from 1, by question."""


pytestmark = pytest.mark.usefixtures("own_cache")


class Rater:
    """Policy that searches once, then answers; right in the rollouts of `RIGHT_AT`."""

    def __init__(self) -> None:
        self.rollouts = Counter[str]()

    def __call__(self, request: dict[str, Any]) -> str:
        user = request["messages"][-1]["content"]
        question = next(one for one in QUESTIONS if one["question"] in user)
        if "<passage>" in user:
            return "<evidence>None</evidence>"
        if "Lyon!" not in user:
            return "<query>Lyon!</query>"
        name = str(question["id"])
        self.rollouts[name] += 1
        right = self.rollouts[name] == RIGHT_AT[name]
        return f"<answer>{'It is ' + question['answers'][0] if right else 'Rome'}.</answer>"


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(Rater(), models=("policy", "other")) as served:
        yield served


def rows_of(run: Path) -> dict[str, Difficulty]:
    rows = table_to_records(read_parts(run, "select/difficulty"), Difficulty)
    return {row.question_id: row for row in rows}


def stage(tmp_path: Path, run: Path, name: str, config: Path) -> tuple[Question, ...]:
    """Loads the questions of a stage through `data` of the recipe."""
    file = run / "select" / f"stage-{name}.jsonl"
    data = load_recipe(config, [f"data.questions={file}"]).data
    return load_data(data, seed=0).questions


def test_questions_are_labelled_by_their_first_right_rollout(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config = recipe(tmp_path, endpoint.base_url, difficulty=SETTINGS)
    run = tmp_path / "run"
    assert branchwise("select", config, run) == 0
    rows = rows_of(run)
    assert {name: row.first_success for name, row in rows.items()} == RIGHT_AT
    for name, row in rows.items():
        first = RIGHT_AT[name]
        assert row.label == difficulty_of(first, 1, 3)
        assert row.rollouts == (first or 8), "a question stops at its first success"
        assert row.output_tokens == 3 * 3 * row.rollouts, "three calls of three tokens"
    assert len(endpoint.requests) == 3 * sum(row.rollouts for row in rows.values())
    assert {request["temperature"] for request in endpoint.requests} == {1.0}
    assert run_sql(run, "select count(*) from difficulty where label = 'medium'").rows == ((2,),)
    one, two = (stage(tmp_path, run, name, config) for name in ("1", "2"))
    assert [rows[q.id].label for q in one] == ["medium"]
    assert {rows[q.id].label for q in two} == {"medium", "difficult"}
    assert len({q.id for q in (*one, *two)}) == 3
    asked = {row["id"]: row["question"] for row in QUESTIONS}
    assert all(q.question == asked[q.id] and q.extra["source"] == "jsonl" for q in two)


def test_calls_are_not_repeated_and_stages_are_redrawn_without_calls(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, endpoint.base_url, difficulty=SETTINGS)
    run = tmp_path / "run"
    branchwise("select", config, run)
    made, rows = len(endpoint.requests), rows_of(run)
    other = ("--set", "difficulty.easy=2", "--set", 'difficulty.stages={"all": {"easy": 5}}')
    assert branchwise("select", config, run, *other) == 0
    assert Counter(row.label for row in rows_of(run).values())["easy"] == 2
    assert len(stage(tmp_path, run, "all", config)) == 2
    # No row is committed any more, but all calls are in the ledger.
    (run / "manifest.json").unlink()
    assert branchwise("select", config, run) == 0
    assert rows_of(run) == rows
    assert len(endpoint.requests) == made
    capsys.readouterr()
    longer = ("--set", "difficulty.rollouts=9")
    for more, expected in (((), "expected calls: none"), (longer, "for 6 questions")):
        assert branchwise("select", config, run, "--dry-run", *more) == 0
        assert expected in capsys.readouterr().out
    assert branchwise("select", config, run, *longer) == 0
    assert len(endpoint.requests) == made + 3, "one more rollout of the unsolved question"


def test_the_run_keeps_the_number_of_its_annotated_questions(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config = recipe(tmp_path, endpoint.base_url, difficulty=SETTINGS)
    run = tmp_path / "run"
    branchwise("annotate", config, run, "--limit", "3")
    branchwise("select", config, run)
    assert (len(rows_of(run)), existing_run(run).recipe.data.limit) == (6, 3)


def test_a_rerun_with_stored_labels_needs_no_endpoint(tmp_path: Path) -> None:
    with serving(Rater()) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url, difficulty=SETTINGS), tmp_path / "run"
        assert branchwise("select", config, run) == 0
    file = run / "select" / "stage-2.jsonl"
    before = file.read_text()
    file.unlink()
    assert branchwise("select", config, run) == 0
    assert file.read_text() == before


def test_a_rater_uses_its_own_settings_and_the_key_is_not_sent_elsewhere(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    rater = {"model": "other", "agent": {"max_steps": 4}, "max_new_tokens": 50, "temperature": 0.7}
    settings = {**SETTINGS, "policy": rater}
    config = recipe(tmp_path, endpoint.base_url, difficulty=settings)
    assert branchwise("select", config, tmp_path / "run") == 0
    asked = {(r["model"], r["max_tokens"], r["temperature"]) for r in endpoint.requests}
    assert asked == {("other", 50, 0.7)}
    with serving(Rater(), key="key of there", models=("other",)) as there:
        elsewhere = {**rater, "engine": "openai", "base_url": there.base_url}
        config = recipe(tmp_path, endpoint.base_url, difficulty={**SETTINGS, "policy": elsewhere})
        assert branchwise("select", config, tmp_path / "other") == 1, (
            "the key is not sent to another server"
        )
        assert all("test-key" not in str(headers) for headers in there.headers)


def test_a_dry_run_prints_the_cost_before_any_call(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, endpoint.base_url)
    assert branchwise("select", config, tmp_path / "run", "--dry-run", "--limit", "5") == 0
    told = capsys.readouterr().out
    assert "at most 960 calls" in told  # 5 · 32 · 6
    assert "32 rollouts each until the first right answer, 6 calls a rollout" in told
    reader = "difficulty.policy={model: policy, agent: {protocol: arena, references: retrieved}}"
    assert branchwise("select", config, tmp_path / "run", "--dry-run", "--set", reader) == 0
    assert "6 questions, 32 rollouts each until the first right answer, 1 calls" in (
        capsys.readouterr().out
    )
    assert endpoint.requests == []
    assert not (tmp_path / "run").exists()


def test_a_run_resumed_after_a_limit_gives_the_same_labels(tmp_path: Path) -> None:
    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url, difficulty=SETTINGS)
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        branchwise("select", config, whole)
        made = len(endpoint.requests)
        one = ("--set", "limits.max_questions_in_flight=1")
        assert branchwise("select", config, parts, *one, "--set", "limits.max_tokens=100") == 3
        with Ledger(parts / "ledger.sqlite") as ledger:
            assert ledger.totals().calls == len(endpoint.requests) - made, (
                "every paid call is stored"
            )
        assert not (parts / "select" / "stage-2.jsonl").exists()
        assert rows_of(parts).keys() < rows_of(whole).keys(), (
            "only some questions are rated before the limit"
        )
        branchwise("select", config, parts)
        assert len(endpoint.requests) == 2 * made
    assert rows_of(parts) == rows_of(whole)


def test_a_failed_question_is_stored_and_retried(tmp_path: Path) -> None:
    broken = True

    def unlucky(request: dict[str, Any]) -> Any:
        if broken and "currency" in request["messages"][-1]["content"]:
            return failure(400, "this model's maximum context length is exceeded")
        return policy(request)

    with serving(unlucky) as endpoint:
        config = recipe(tmp_path, endpoint.base_url, difficulty={**SETTINGS, "stages": {}})
        run = tmp_path / "run"
        assert branchwise("select", config, run) == 4, "one failure in six is more than 5 %"
        (failed,) = table_to_records(read_parts(run, "select/failures"), Failure)
        assert (failed.question_id, failed.stage) == ("q3", "select")
        assert "q3" not in rows_of(run)
        made, broken = len(endpoint.requests), False
        assert branchwise("select", config, run) == 0
        assert {"currency" in str(r["messages"]) for r in endpoint.requests[made:]} == {True}
    assert read_parts(run, "select/failures").num_rows == 0
    assert rows_of(run).keys() == RIGHT_AT.keys()


def test_an_empty_stage_is_an_error_and_has_no_file(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, endpoint.base_url, difficulty=SETTINGS)
    run = tmp_path / "run"
    assert branchwise("select", config, run) == 0
    rare = 'difficulty.stages={"1": {"medium": 1}, "2": {"hard/medium": 1}}'
    assert branchwise("select", config, run, "--set", rare) == 2
    assert "names sources for some labels only" in capsys.readouterr().out
    assert (
        branchwise("select", config, run, "--set", rare.replace('{"medium', '{"jsonl/medium')) == 2
    )
    assert "stage 2 has no questions (0 of 1 hard/medium" in capsys.readouterr().out
    assert [file.name for file in (run / "select").glob("*.jsonl")] == ["stage-1.jsonl"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"difficulty": {"policy": READER}}, "without paragraphs"),
        ({"difficulty": {"easy": 20}}, "a label would never be used (20, 20, 32)"),
        ({"difficulty": {"policy": {"model": "policy", "temperature": 0}}}, "are the same (0)"),
        ({"difficulty": {"stages": {"1": {"hard": 3}}}}, "no such label (hard)"),
        ({"difficulty": {"policy": "models/none"}, "policy": {}}, "models/none"),
    ],
)  # fmt: skip
def test_unusable_settings_are_refused_before_any_call(
    tmp_path: Path,
    endpoint: FakeEndpoint,
    changes: dict[str, Any],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, run = recipe(tmp_path, endpoint.base_url, **changes), tmp_path / "run"
    assert branchwise("select", config, run) == 2
    assert says in capsys.readouterr().out
    assert endpoint.requests == []
    assert not run.exists()


def test_an_engine_that_cannot_continue_a_turn_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy, owned_by="somebody") as endpoint:
        rater = {"model": "policy", "agent": {"protocol": "r1-searcher"}}
        config = recipe(tmp_path, endpoint.base_url, difficulty={"policy": rater})
        run = tmp_path / "run"
        assert branchwise("select", config, run) == 1
        assert "`r1-searcher` needs to continue a turn" in capsys.readouterr().out
        assert endpoint.requests == []
        assert not run.exists(), "so that a corrected recipe can use the folder"


def test_a_rater_may_have_another_protocol_than_the_recipe(tmp_path: Path) -> None:
    def searching(request: dict[str, Any]) -> str:
        turn = bytes(request["prompt"]).decode()
        answer = ("Paris", "Tokyo", "Yen")[int(request["seed"]) % 3]
        if "<|begin_of_documents|>" in turn.rpartition("[assistant]")[2]:
            return f" so.</think>\n<answer>{answer}</answer>"
        return "<think>I look. <|begin_of_query|> Lyon <|end_of_query|>"

    with serving(searching) as endpoint:
        agent = {"protocol": "r1-searcher", "prompt": "instruct", "max_steps": 9}
        rater = {"model": "policy", "agent": agent}
        settings = {**SETTINGS, "policy": rater, "rollouts": 32, "stages": {}}
        config, run = recipe(tmp_path, endpoint.base_url, difficulty=settings), tmp_path / "run"
        assert branchwise("select", config, run) == 0
        rows, made = rows_of(run), len(endpoint.requests)
        assert made == 2 * sum(row.rollouts for row in rows.values())
        assert {tuple(request["stop"]) for request in endpoint.requests} == {
            ("<|end_of_query|>", "</answer>")
        }
        (run / "manifest.json").unlink()
        assert branchwise("select", config, run) == 0, "calls with token ids are replayed, too"
        assert (rows_of(run), len(endpoint.requests)) == (rows, made)


def test_a_warning_is_printed_if_the_rater_is_never_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: "I would rather chat.") as endpoint:
        config = recipe(tmp_path, endpoint.base_url, difficulty={**SETTINGS, "stages": {}})
        assert branchwise("select", config, tmp_path / "run") == 0
    told = capsys.readouterr().out
    assert "6 questions rated in 48 rollouts: 0 easy, 0 medium, 0 difficult, 6 unsolved" in told
    assert "no rollout was right" in told


def test_unanswerable_questions_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"id": "u", "question": "Who is mayor?", "answers": [], "answerable": False}
    monkeypatch.setattr("tiny_dataset.QUESTIONS", [unknown])
    with serving(policy) as endpoint:
        settings = {"policy": {"model": "policy", "agent": {"protocol": "evo-rag"}}}
        config = recipe(tmp_path, endpoint.base_url, difficulty=settings)
        assert branchwise("select", config, tmp_path / "run") == 2
    assert "questions left out, unanswerable: 1" in capsys.readouterr().out
