"""Open-domain sets, without passages: Bamboogle, NQ, PopQA, and plain questions with answers."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field

from sources.rows import Answers, Identifier, Row, Text, content_id, with_answers
from storage.records import Question


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class PlainRow(Row):
    """Columns `Question` and `Answer` (either case; the answer may be a list), perhaps `id`."""

    format: ClassVar[str] = "a question with its answer"
    usual_type: ClassVar[str | None] = None
    usual_hops: ClassVar[int | None] = None

    id: Identifier | None = None
    question: Text = Field(validation_alias=AliasChoices("question", "Question"))
    answer: Annotated[
        Answers,
        BeforeValidator(_as_list),
        Field(validation_alias=AliasChoices("answer", "Answer", "answers", "Answers")),
    ]
    type: str | None = None

    def to_question(self, source: str) -> Question:
        return Question(
            id=self.id or f"{source}-{content_id(self.question)}",
            source=source,
            question=self.question,
            answers=with_answers(self.answer),
            type=self.type or self.usual_type,
            hops=self.usual_hops,
            extra=self.others(),
        )


class BamboogleRow(PlainRow):
    """Every Bamboogle question composes two facts."""

    format: ClassVar[str] = "Bamboogle's own format"
    usual_type: ClassVar[str | None] = "compositional"
    usual_hops: ClassVar[int | None] = 2


class NqRow(PlainRow):
    """NQ-open's JSONL."""

    format: ClassVar[str] = "NQ-open's own format"
    usual_type: ClassVar[str | None] = "open_domain"
    usual_hops: ClassVar[int | None] = 1


def _json_list(value: Any) -> Any:
    """Parses a column that contains a JSON list as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not a JSON list") from error


class PopRow(Row):
    """PopQA's TSV, single-hop questions about an entity's property.

    Columns `id`, `question`, `possible_answers`, `prop`, `s_wiki_title`, …
    """

    format: ClassVar[str] = "PopQA's own format"

    id: Identifier
    question: Text
    possible_answers: Annotated[Answers, BeforeValidator(_json_list)]
    prop: str | None = None
    s_wiki_title: str | None = None

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "possible_answers" in raw

    def to_question(self, source: str) -> Question:
        return Question(
            id=self.id,
            source=source,
            question=self.question,
            answers=with_answers(self.possible_answers),
            type=self.prop,
            hops=1,
            supporting_titles=(self.s_wiki_title,) if self.s_wiki_title else (),
            extra=self.others(),
        )
