"""The steps of policies on test questions, and those on which arms differ most (EVO-RAG table 7).

The questions of the table are selected for their difference, so they show an arm's possible
behaviour, not its usual one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from branchwise.agent import is_search
from branchwise.base import Sheet, terminal_safe
from branchwise.rewards import Similarity
from branchwise.types import Prediction, Question, QuestionKey

from ..arms import EvaluatedArm

NEAR = 0.8
"""Cosine from which two sub-queries are near-duplicates, as in `rewards.overlap_threshold`."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of a trajectory.

    Attributes:
        content: Query or answer; "" for other actions.
        alike: Largest cosine to an earlier query; None for the first search and other actions.
    """

    action: str
    content: str
    titles: tuple[str, ...] = ()
    alike: float | None = None

    @property
    def searches(self) -> bool:
        return is_search(self.action)

    @property
    def repeats(self) -> bool:
        """Whether its query nearly repeats an earlier one."""
        return self.alike is not None and self.alike >= NEAR


def moves_of(row: Prediction, similarity: Similarity) -> Iterator[RecordedStep]:
    """Yields the steps of a trajectory, in order; queries that were taken back count as earlier
    ones.
    """
    queries: list[str] = []
    for step in json.loads(row.trajectory):
        content, alike = step["content"], None
        if is_search(step["action"]):
            alike = similarity(content, queries) if queries else None
            queries.append(content)
        titles = tuple(passage["title"] for passage in step["passages"])
        yield RecordedStep(step["action"], content, titles, alike)


ANSWERABLE, UNANSWERABLE = 3, 1
"""Number of questions of either kind to show, as in the paper."""

ArmPredictions = Mapping[str, Prediction]
"""Predictions of all arms for one question, by arm name."""


def trace_text(
    results: Sequence[EvaluatedArm], questions: Sequence[Question], similarity: Similarity
) -> str:
    """Returns a table per question with a column per arm, from the policies of the first seed."""
    questions_by_key = {(question.source, question.id): question for question in questions}
    shared = {key: rows for key, rows in _by_question(results).items() if key in questions_by_key}
    parts = [
        "Selected because the arms differ most on them, so they are not typical. "
        f"Dup.: a search whose query nearly repeats an earlier one (cosine ≥ {NEAR}).\n"
    ]
    for key in most_different_questions(shared):
        question = questions_by_key[key]
        gold = "; ".join(question.answers) if question.answerable else "cannot be answered"
        parts.append(f"### {terminal_safe(question.question)}\n\nGold: {terminal_safe(gold)}\n")
        parts.append(_sheet(question, shared[key], similarity).markdown())
    return "\n".join(parts)


def _by_question(results: Sequence[EvaluatedArm]) -> dict[QuestionKey, ArmPredictions]:
    arms = {result.arm.name: _first(result) for result in results if result.predictions}
    shared = set.intersection(*(set(rows) for rows in arms.values())) if arms else set()
    return {key: {name: rows[key] for name, rows in arms.items()} for key in sorted(shared)}


def _first(result: EvaluatedArm) -> dict[QuestionKey, Prediction]:
    rows = next(iter(result.predictions.values()))
    return {(row.source, row.question_id): row for row in rows if isinstance(row, Prediction)}


def most_different_questions(shared: Mapping[QuestionKey, ArmPredictions]) -> list[QuestionKey]:
    """Returns the questions to show, sorted by number of different ends, then by search counts."""

    def difference(key: QuestionKey) -> tuple[int, int]:
        rows = shared[key].values()
        searches = [row.searches for row in rows]
        return len({_end(row) for row in rows}), max(searches) - min(searches)

    ranked = sorted(shared, key=difference, reverse=True)
    answerable = [key for key in ranked if _answerable(shared[key])]
    unanswerable = [key for key in ranked if not _answerable(shared[key])]
    return [*answerable[:ANSWERABLE], *unanswerable[:UNANSWERABLE]]


def _answerable(rows: ArmPredictions) -> bool:
    return all(row.em is not None for row in rows.values())


def _end(row: Prediction) -> str:
    if row.refused:
        return "rightly" if row.em is None else "wrongly"
    return "right" if row.em else "wrong"


def _sheet(question: Question, rows: ArmPredictions, similarity: Similarity) -> Sheet:
    columns = [[_cell(move, row) for move in moves_of(row, similarity)] for row in rows.values()]
    steps = tuple(
        (str(number), *cells)
        for number, cells in enumerate(zip_longest(*columns, fillvalue=""), start=1)
    )
    return Sheet(f"{question.source} {question.id}", ("step", *rows), steps, names=len(rows) + 1)


def _cell(move: RecordedStep, row: Prediction) -> str:
    """Describes a step: its action, its content and its result."""
    if move.searches:
        mark = " (Dup.)" if move.repeats else ""
        return f"search: {move.content}{mark} → {'; '.join(move.titles) or 'nothing'}"
    if move.action in {"answer", "refuse"}:
        text = f": {move.content}" if move.content else ""
        return f"{move.action}{text} ({_end(row)})"
    return {"backtrack": "take back", "invalid": "invalid"}.get(move.action, move.action)
