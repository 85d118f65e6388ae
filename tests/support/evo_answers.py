"""Handwritten answers of EVO-RAG policies."""

from collections.abc import Sequence
from typing import Any

from evo_world import step
from sample_records import a_prediction

from branchwise.agent.state import State
from branchwise.evaluation.prediction_scoring import trajectory_json
from branchwise.types import Prediction


def an_answer(
    question: str, queries: Sequence[str], em: float | None, *, refused: bool = False, **more: Any
) -> Prediction:
    """Returns a prediction: searches for `queries`, which all find "p", then answer or refusal.

    `em` is None if the question cannot be answered.
    """
    last = step("refuse") if refused else step("answer", "Paris" if em else "Rome")
    steps = [*(step("search", query, "p") for query in queries), last]
    fields: dict[str, Any] = {
        "em": em,
        "f1": em,
        "cover_em": em,
        "searches": len(queries),
        "steps": len(steps),
        "refused": refused,
        "prediction": None if refused else last.action.content,
        "trajectory": trajectory_json(State("?", steps=tuple(steps))),
    }
    return a_prediction(question_id=question, **(fields | more))


def searching(count: int, answered: str, unanswerable: int = 0) -> list[Prediction]:
    """Returns one prediction per letter of `answered`, right ("1") or wrong ("0").

    Each has `count` searches. Refusals of `unanswerable` questions follow.
    """
    queries = [f"query {n}" for n in range(count)]
    graded = [an_answer(f"q{n}", queries, float(right)) for n, right in enumerate(answered)]
    asked = range(len(answered), len(answered) + unanswerable)
    return [*graded, *(an_answer(f"q{n}", queries, None, refused=True) for n in asked)]
