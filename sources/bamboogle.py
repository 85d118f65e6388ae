"""Bamboogle and plain open-domain sets: a question and its answer, often without an id."""

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
