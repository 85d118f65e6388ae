"""Inputs of a run: it resumes only with unchanged files, and has one writer at a time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint
from sample_records import a_pair
from tiny_dataset import PASSAGES, QUESTIONS, recipe, write_rows

from branchwise.agent import protocol
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.base.errors import ConfigError
from branchwise.engines import model_digest
from branchwise.pipelines.annotate.commit import Committer
from branchwise.runs.annotated_trees import pairs_of, pairs_table
from branchwise.runs.folder import existing_run, open_run
from branchwise.runs.proguide import to_proguide
from branchwise.runs.recipe import Recipe
from branchwise.storage.ledger import Ledger
from branchwise.storage.parts import question_ids, read_parts

PAIR = to_proguide(a_pair()).model_dump()


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, own_cache: None) -> Path:
    return recipe(tmp_path, endpoint.base_url)


def annotate_some(config: Path, run: Path) -> None:
    """Starts a run that stops at a limit after some of the six questions."""
    stopped = ("--set", "limits.max_tokens=1000", "--set", "limits.max_questions_in_flight=1")
    assert branchwise("annotate", config, run, *stopped) == 3
    assert 0 < len(question_ids(run, "trees")) < len(QUESTIONS)


def rows(path: Path, records: list[dict[str, Any]], **changes: str) -> None:
    write_rows(path, {**records[0], **changes}, *records[1:])


def other_prompt(patch: pytest.MonkeyPatch) -> None:
    edited = dict.fromkeys(ReasonRAG().prompts, "Be brief.")
    patch.setattr(protocol, "load_prompts", lambda _: edited)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("corpus", lambda at, _: rows(at / "corpus.jsonl", PASSAGES, text="Lyon is in Gaul.")),
        ("questions", lambda at, _: rows(at / "questions.jsonl", QUESTIONS, question="Where?")),
        ("policy_prompts", lambda _, patch: other_prompt(patch)),
    ],
)
def test_a_changed_input_file_is_rejected(
    named: str,
    change: Callable[[Path, pytest.MonkeyPatch], None],
    tmp_path: Path,
    config: Path,
    endpoint: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    annotate_some(config, run)
    made = len(endpoint.requests)
    noted = json.loads((run / "provenance.json").read_text())["inputs"]
    with pytest.MonkeyPatch.context() as patch:
        change(tmp_path, patch)
        assert branchwise("annotate", config, run) == 2
        assert f"{named}: was '{noted[named]}', now '" in capsys.readouterr().out
        # Relabelling replays trees, so it needs the same passages and prompts.
        assert branchwise("relabel", config, run) == (0 if named == "questions" else 2)
    assert len(endpoint.requests) == made
    recipe(tmp_path, endpoint.base_url)  # restored
    assert branchwise("annotate", config, run) == 0
    assert question_ids(run, "trees") == {question["id"] for question in QUESTIONS}


def test_a_pilot_resumes_with_more_questions_without_repeating_calls(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert branchwise("annotate", config, run, "--limit", "2") == 0
    pilot = read_parts(run, "trees").sort_by([("tree_id", "ascending"), ("node_id", "ascending")])
    assert len(question_ids(run, "questions")) == 2
    paid = len(endpoint.requests)
    assert branchwise("annotate", config, run) == 0
    more = len(endpoint.requests) - paid
    noted = json.loads((run / "provenance.json").read_text())
    assert branchwise("annotate", config, whole) == 0
    assert more + paid == len(endpoint.requests) - more - paid, (
        "two parts should make as many calls as one run"
    )
    alone = json.loads((whole / "provenance.json").read_text())
    assert noted["inputs"] == alone["inputs"]
    assert noted["facts"]["data"] == alone["facts"]["data"]
    for table in ("questions", "trees", "pairs"):
        found = [read_parts(one, table).drop_columns(["run_id"]) for one in (run, whole)]
        order = [(name, "ascending") for name in found[0].column_names if name.endswith("_id")]
        assert found[0].sort_by(order).equals(found[1].sort_by(order))
    kept = read_parts(run, "trees").filter(
        pc.is_in(pc.field("question_id"), pilot["question_id"].combine_chunks())
    )
    assert kept.sort_by([("tree_id", "ascending"), ("node_id", "ascending")]).equals(pilot)
    assert branchwise("verify", config, run) == 0


def test_a_relabelling_without_the_newest_questions_is_rejected_for_training(
    tmp_path: Path, config: Path
) -> None:
    run = tmp_path / "run"
    assert branchwise("annotate", config, run, "--limit", "4") == 0
    assert branchwise("relabel", config, run, "--label", "other") == 0
    table = pairs_table("other")
    few = pairs_of(existing_run(run), table)
    assert branchwise("annotate", config, run) == 0
    with pytest.raises(ConfigError, match=r"2 questions were annotated .*relabel --label other"):
        pairs_of(existing_run(run), table)
    assert branchwise("relabel", config, run, "--label", "other") == 0
    assert len(pairs_of(existing_run(run), table)) > len(few)


def test_a_run_does_not_resume_with_fewer_or_changed_questions(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert branchwise("annotate", config, run, "--limit", "4") == 0
    made = len(endpoint.requests)
    capsys.readouterr()
    for more in (("--limit", "3"), ("--set", "data.limit=3"), ("--limit", "3", "--dry-run")):
        assert branchwise("annotate", config, run, *more) == 2
        told = capsys.readouterr().out
        assert "the run has 4 questions, and a limit of 3 (--limit or data.limit)" in told
        assert "use --limit 4 to resume it" in told
    assert branchwise("annotate", config, run, "--limit", "4") == 0
    one = next(q for q in QUESTIONS if q["id"] in question_ids(run, "questions"))
    changed = [{**q, "question": "Where?"} if q is one else q for q in QUESTIONS]
    rows(tmp_path / "questions.jsonl", changed)
    assert branchwise("annotate", config, run) == 2
    assert "questions: was '" in capsys.readouterr().out
    assert len(endpoint.requests) == made


def test_a_run_that_was_killed_while_adding_questions_can_resume(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert branchwise("annotate", config, run, "--limit", "2") == 0
    with monkeypatch.context() as patch:
        # Fails after the new questions are noted and before their table is written.
        patch.setattr(Committer, "_write", lambda *_: (_ for _ in ()).throw(MemoryError))
        assert branchwise("annotate", config, run) == 1
    assert len(question_ids(run, "questions")) == 2
    assert branchwise("annotate", config, run) == 0
    assert question_ids(run, "questions") == {question["id"] for question in QUESTIONS}


def test_changed_weights_under_the_same_file_name_are_rejected(tmp_path: Path) -> None:
    model = tmp_path / "policy.gguf"
    little = Recipe.model_validate({"name": "little", "policy": {"model": str(model)}})

    def opened(weights: bytes) -> None:
        model.write_bytes(weights)
        open_run(tmp_path / "run", little, {}, {"policy": model_digest(little.policy)})

    open_run(tmp_path / "run", little, {"index_digest": "of an evaluation"})
    opened(b"before")
    opened(b"before")
    kept = (tmp_path / "run" / "provenance.json").read_bytes()
    with pytest.raises(ConfigError, match=r"policy: was '.*', now '"):
        opened(b"trained again")
    assert (tmp_path / "run" / "provenance.json").read_bytes() == kept


def test_imported_pairs_and_trees_cannot_be_in_the_same_run(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run, annotated = tmp_path / "pairs.json", tmp_path / "imported", tmp_path / "run"
    file.write_text(json.dumps([PAIR]))
    assert branchwise("import-pairs", config, run, "--file", str(file)) == 0
    assert branchwise("annotate", config, run) == 2
    annotate_some(config, annotated)
    capsys.readouterr()
    assert branchwise("import-pairs", config, annotated, "--file", str(file)) == 2
    assert "imported_pairs: was None" in capsys.readouterr().out
    file.write_text(json.dumps([{**PAIR, "chosen": "<query>Paris</query>"}]))
    assert branchwise("import-pairs", config, run, "--file", str(file)) == 2
    assert read_parts(run, "pairs").num_rows == 1


def test_a_dry_run_rejects_changed_settings_and_writes_nothing(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = tmp_path / "run", tmp_path / "pairs.json"
    file.write_text(json.dumps([PAIR]))
    annotate_some(config, run)
    made, before = len(endpoint.requests), contents(run)
    for stage, more in (
        ("annotate", ()),
        ("select", ()),
        ("import-pairs", ("--file", str(file))),
    ):
        arguments = (stage, config, run, *more, "--dry-run")
        assert branchwise(*arguments) == 0
        capsys.readouterr()
        assert branchwise(*arguments, "--set", "rewards.alpha=0.5") == 2
        told = capsys.readouterr().out
        assert "holds a run with other settings" in told
        assert "rewards.alpha: was 0.9, now 0.5" in told
    assert len(endpoint.requests) == made
    assert contents(run) == before


def test_a_run_in_use_by_another_process_is_not_changed(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = tmp_path / "run", tmp_path / "pairs.json"
    annotate_some(config, run)
    file.write_text(json.dumps([PAIR]))
    changed = ("--set", "limits.max_concurrency=2", "--set", "pairs.min_outcomes=1")
    with Ledger(run / "ledger.sqlite"):
        before = contents(run)
        capsys.readouterr()
        for stage, more in (
            ("relabel", changed),
            ("import-pairs", ("--file", str(file))),
            ("annotate", changed[:2]),
        ):
            assert branchwise(stage, config, run, *more) == 2
            assert "in use by process" in capsys.readouterr().out
            assert contents(run) == before
    assert branchwise("relabel", config, run, *changed) == 0


@pytest.mark.parametrize("below", ["", "deeper/run"])
def test_a_run_folder_that_is_a_file_is_reported(
    below: str, tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run = tmp_path / "notes.txt" / below
    for stage in ("annotate", "relabel", "inspect"):
        assert branchwise(stage, config, run) == 2
        assert f"error: {run}: " in capsys.readouterr().out
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("stage", "kept", "says"),
    [
        ("annotate", b'{"run_id": [', "is not JSON"),
        ("annotate", b'{"recipe": ' + b"[" * 100_000, "nested too deeply"),
        ("relabel", b"\xff\xfe", "is not UTF-8"),
        ("inspect", b"", "is not JSON"),
        ("export-pairs", b'{"from_a_newer": 1}', "from_a_newer"),
        ("train-dpo", b"{}", "run_id"),
    ],
    ids=["torn", "deep", "no utf-8", "empty", "newer", "no fields"],
)
def test_an_unreadable_record_in_a_run_folder_is_reported(
    stage: str,
    kept: bytes,
    says: str,
    tmp_path: Path,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "provenance.json").write_bytes(kept)
    more = ("--file", str(tmp_path / "out.json")) if stage == "export-pairs" else ()
    assert branchwise(stage, config, run, *more) == 2
    told = capsys.readouterr().out
    assert f"error: {run}" in told
    assert "--run folder" in told, "the message should suggest a fix"
    assert says in told
    assert (run / "provenance.json").read_bytes() == kept


def contents(run: Path) -> dict[str, bytes]:
    files = {str(path): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if "sqlite" not in path.name}
