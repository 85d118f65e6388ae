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
            type=self.type,
            extra=self.others(),
        )


class BamboogleRow(PlainRow):
    """Every Bamboogle question composes two facts."""

    format: ClassVar[str] = "Bamboogle's own format"

    def to_question(self, source: str) -> Question:
        question = super().to_question(source)
        return question.model_copy(update={"type": self.type or "compositional", "hops": 2})


class NqRow(PlainRow):
    """NQ-open's JSONL."""

    format: ClassVar[str] = "NQ-open's own format"

    def to_question(self, source: str) -> Question:
        question = super().to_question(source)
        return question.model_copy(update={"type": self.type or "open_domain", "hops": 1})
