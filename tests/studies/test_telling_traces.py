"""Traces and distributions of EVO-RAG studies: near-duplicates, and questions that differ."""

from collections.abc import Sequence
from pathlib import Path

from evo_answers import an_answer, searching
from evo_world import words_alike
from sample_records import a_question

from branchwise.studies.arms import Arm, EvaluatedArm
from branchwise.studies.evo.distributions import (
    distribution_sheet,
    distributions,
    draw_distributions,
)
from branchwise.studies.evo.traces import trace_text
from branchwise.types import Prediction

REPEATED = ["capital of France", "Lyon", "France capital of"]
"""Queries of which the third has all words of the first."""


def evaluated_arm(name: str, rows: Sequence[Prediction]) -> EvaluatedArm:
    return EvaluatedArm(Arm(name), {0: list(rows)})


def test_a_trace_shows_searches_near_duplicates_and_the_outcome() -> None:
    arms = [
        evaluated_arm("two-stage", [an_answer("q1", REPEATED, 0.0)]),
        evaluated_arm("time-dynamic", [an_answer("q1", ["a | b"], 1.0)]),
    ]
    text = trace_text(arms, [a_question(question="Capital?"), a_question(id="q9")], words_alike)
    assert "### Capital?\n\nGold: Paris" in text
    assert "| 1 | search: capital of France → p | search: a \\| b → p |" in text
    assert "| 2 | search: Lyon → p | answer: Paris (right) |" in text
    assert "| 3 | search: France capital of (Dup.) → p |  |" in text
    assert "| 4 | answer: Rome (wrong) |  |" in text
    assert "not typical" in text


def test_distributions_cover_all_seeds_and_arms(tmp_path: Path) -> None:
    arms = [evaluated_arm("few", searching(1, "10")), evaluated_arm("many", searching(3, "10"))]
    arms[1].predictions[1] = [an_answer("q0", REPEATED, 1.0)]
    found = distributions(arms, words_alike)
    rows = {row[:2]: row[2:] for row in distribution_sheet(found).rows}
    assert rows["searches per question", "few"][:2] == ("2", "1.00")
    assert rows["steps per question", "many"][:2] == ("3", "4.00")
    # "query 0", "query 1" and "query 2" share a third of their words. REPEATED has a duplicate.
    assert rows["near-duplicate searches per question", "many"][:2] == ("3", "0.33")
    words = rows["words of a sub-query", "many"]
    assert words[:2] == ("9", number(6 * 2 + 3 + 1 + 3, 9))
    assert words[4] == "2.0", "the median"
    draw_distributions(found, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().lstrip().startswith("<?xml")


def number(total: int, n: int) -> str:
    return f"{total / n:.2f}"
