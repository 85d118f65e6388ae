"""What policies of EVO-RAG answered, by hand."""

from collections.abc import Sequence
from typing import Any

from evo_world import step
from sample_records import a_prediction

from agent.state import State
from evaluation.scoring import trajectory_json
from storage.records import Prediction


def an_answer(
    question: str, queries: Sequence[str], em: float | None, *, refused: bool = False, **more: Any
) -> Prediction:
    """Searches for `queries`, each of which brings "p", then an answer or a refusal.

    `em` is null where the question cannot be answered.
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
    """A question a letter of `answered`, right ("1") or wrong ("0"), after `count` searches each.

    The unanswerable ones come after them, and are refused.
    """
    queries = [f"query {n}" for n in range(count)]
    graded = [an_answer(f"q{n}", queries, float(right)) for n, right in enumerate(answered)]
    asked = range(len(answered), len(answered) + unanswerable)
    return [*graded, *(an_answer(f"q{n}", queries, None, refused=True) for n in asked)]
