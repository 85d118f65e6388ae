"""Unanswerable questions in `annotate` and `eval`, with protocols that can and cannot refuse."""

from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from loopback import serving
from stored_rows import run_sql
from tiny_dataset import QUESTIONS, recipe

UNKNOWN = [
    {"id": f"u{n}", "question": text, "answers": [], "answerable": False}
    for n, text in enumerate(("Who is the mayor of Lyon?", "Who founded Osaka?"))
]
CAPITALS = {"Lyon": "Paris", "Osaka": "Tokyo"}


def policy(request: dict[str, Any]) -> str:
    """Policy that searches, backtracks, then answers; refuses one of the two unknown questions."""
    user = request["messages"][-1]["content"]
    if "Search: " not in user and "Taken back" not in user:
        return "<search>capital</search>"
    if "Taken back" not in user:
        return "<note>Nothing found</note><backtrack/>"
    if "Search: " not in user:
        return "<search>Japan</search>"
    if "mayor" in user:
        return "<note>Nothing found</note><refuse/>"
    return (
        f"<note>a capital</note><answer>{CAPITALS['Lyon' if 'Lyon' in user else 'Osaka']}</answer>"
    )


@pytest.mark.parametrize("protocol", ["evo-rag", "reasonrag"])
def test_unanswerable_questions_are_used_only_if_the_policy_can_refuse(
    protocol: str, tmp_path: Path, own_cache: None
) -> None:
    can_refuse = protocol == "evo-rag"
    with serving(policy) as endpoint:
        config = recipe(
            tmp_path,
            endpoint.base_url,
            agent={"protocol": protocol, "max_steps": 6},
            mcts={"kind": "chains", "iterations": 2},
            evaluation={"set": asked(tmp_path)},
        )
        run, exam = tmp_path / "run", tmp_path / "exam"
        assert branchwise("annotate", config, run) == 0
        assert branchwise("eval", config, exam) == 0
    grown = "select count(distinct question_id) from trees where question_id like 'u%'"
    assert run_sql(run, grown).rows[0][0] == (2 if can_refuse else 0)
    (table,) = (exam / "eval").glob("*.md")
    lines = table.read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("| policy | questions")]
    cells: dict[str, str] = {}
    for number in heads:
        cells |= zip(words(lines[number]), words(lines[number + 2]), strict=True)
    if not can_refuse:
        assert not {"refusal recall", "backtracks"} & cells.keys()
        assert (cells["questions"], cells["n"]) == ("all", "6")
        return
    told = ("n", "EM", "searches", "backtracks", "refused", "refusal precision", "refusal recall")
    # Four of the six answerable questions are right. One of the eight is refused, correctly.
    assert [cells[name] for name in told] == ["8", "66.7", "2.0", "1.0", "12.5", "100.0", "50.0"]
    sums = "select count(em), sum(backtracks), sum(refused::int) from predictions"
    assert list(run_sql(exam, sums).rows) == [(6, 8, 1)]


def asked(folder: Path) -> dict[str, Any]:
    """Returns the evaluation set of all eight questions."""
    path = folder / "questions.jsonl"
    return {"source": "jsonl", "questions": str(path), "split": None}


def words(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(autouse=True)
def _eight_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiny_dataset.QUESTIONS", [*QUESTIONS, *UNKNOWN])
