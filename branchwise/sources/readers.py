"""Formats and licence of each source, and a reader of its sets, from files or from the hub."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from branchwise.base import ConfigError, Faults, comparable
from branchwise.types import Question

from .files import Placed, Raw, existing, hub_rows, in_composed_form, read_rows
from .flashrag import FlashRow
from .hotpotqa import HotpotRow
from .jsonl import QuestionLine
from .musique import MusiqueRow
from .open_domain import BamboogleRow, NqRow, PlainRow, PopRow
from .passage_questions import ReadingRow
from .question_lines import READERS, Row, distinct
from .splits import split_of
from .strategyqa import StrategyRow

for _source, _forms in {
    "jsonl": (QuestionLine,),
    "hotpotqa": (QuestionLine, FlashRow, HotpotRow),
    "2wiki": (QuestionLine, FlashRow, HotpotRow),
    "musique": (QuestionLine, FlashRow, MusiqueRow),
    "popqa": (QuestionLine, FlashRow, PopRow),
    "bamboogle": (QuestionLine, FlashRow, BamboogleRow),
    "nq": (QuestionLine, FlashRow, NqRow),
    "strategyqa": (StrategyRow,),
    "reading": (ReadingRow,),
    "flashrag": (FlashRow,),
    "hub": (ReadingRow, QuestionLine, FlashRow, PopRow, MusiqueRow, HotpotRow, PlainRow),
}.items():
    READERS.add(_source, _forms, __name__)


LICENCES = {
    "hotpotqa": "CC BY-SA 4.0",
    "2wiki": "Apache-2.0 (passages from Wikipedia, CC BY-SA)",
    "musique": "CC BY 4.0 (passages from Wikipedia, CC BY-SA)",
    "popqa": "MIT (passages from Wikipedia, CC BY-SA)",
    "bamboogle": "MIT",
    "nq": "CC BY-SA 3.0",
    "strategyqa": "MIT",
}
"""Licence by source, for sources that are a single set."""


class PlacedQuestion(NamedTuple):
    """A place ("file:line") and its question.

    Attributes:
        has_own_id: Whether the file has the question's id; if not, it is a hash of its content.
    """

    place: str
    question: Question
    has_own_id: bool = True


_QUESTION_FIELDS = set(Question.model_fields)
"""Field names that all questions share."""


def read_set(source: str, questions: str | None) -> tuple[list[PlacedQuestion], int]:
    """Returns all questions of a set.

    Args:
        source: Key of `READERS`.
        questions: File, or name on the hub.

    Returns:
        Questions in the file's order, with distinct ids; and the number of lines that repeat an
            earlier question.

    Raises:
        ConfigError: If the file is missing or faulty (lists up to 20 faults with file and line).
    """
    if questions is None:
        raise ConfigError(
            f"`source` is {source}, but its `questions` is not set; set it to the file of the "
            "questions"
        )
    faults = Faults()
    if source == "hub":
        rows: Iterable[Placed] = hub_rows(questions)
    else:
        path = existing(questions, f"questions of `{source}`", faults)
        rows = read_rows(path, faults) if path else ()
    merged, repeated = merge_questions(_questions(in_composed_form(rows), source, faults), faults)
    faults.raise_any()
    if not merged:
        raise ConfigError(f"{questions}: contains no questions")
    return merged, repeated


def _questions(rows: Iterable[Placed], source: str, faults: Faults) -> Iterator[PlacedQuestion]:
    for place, form, raw in _expanded(rows, source, faults):
        try:
            row = form.parse(raw)
            question = row.to_question(source)
        except ValueError as error:
            faults.add(place, str(error))
            continue
        # Set here: a second pass would have the whole set in memory twice.
        split = question.split or split_of(comparable(question.question))
        licence = question.licence or LICENCES.get(source)
        values = {**dict(question), "split": split, "licence": licence}
        # One shared set of field names; a separate one takes a third of a question's memory.
        full_question = Question.model_construct(_QUESTION_FIELDS, **values)
        yield PlacedQuestion(place, full_question, bool(getattr(row, "id", None)))


def _expanded(
    rows: Iterable[Placed], source: str, faults: Faults
) -> Iterator[tuple[str, type[Row], Raw]]:
    """Yields the place, format and object of each question; a row may have several."""
    *recognised, usual = READERS[source]
    for place, raw in rows:
        form = next((form for form in recognised if form.recognises(raw)), usual)
        try:
            parts = form.expand(raw)
        except ValueError as error:
            faults.add(place, str(error))
            continue
        for number, part in enumerate(parts, start=1):
            yield place if part is raw else f"{place}, question {number}", form, part


def _together(first: Question, second: Question) -> Question:
    """Returns a question with all that two rows say of it; the first decides differences."""
    lists = ("answers", "supporting_titles", "supporting_ids")
    singles = ("type", "hops", "licence")
    merged: dict[str, Any] = {
        name: distinct((*getattr(first, name), *getattr(second, name))) for name in lists
    }
    merged |= {name: getattr(first, name) or getattr(second, name) for name in singles}
    return first.model_copy(update={**merged, "extra": {**second.extra, **first.extra}})


def merge_questions(
    questions: Iterable[PlacedQuestion], faults: Faults
) -> tuple[list[PlacedQuestion], int]:
    """Returns questions with distinct ids, and the number of repetitions.

    A repetition of a question without an id may have other answers, which are all kept. An id of
    the file with two different contents is a fault that names both places.
    """
    first: dict[str, PlacedQuestion] = {}
    repeated = 0
    for placed in questions:
        name = placed.question.id
        earlier = first.setdefault(name, placed)
        if earlier is placed:
            continue
        if earlier.question == placed.question:
            repeated += 1
        elif not placed.has_own_id and earlier.question.answerable == placed.question.answerable:
            repeated += 1
            first[name] = earlier._replace(question=_together(earlier.question, placed.question))
        else:
            faults.add(placed.place, f"id {name!r} is also at {earlier.place}, with other content")
    return list(first.values()), repeated
