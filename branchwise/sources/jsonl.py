"""Our own JSONL: one question per line, as docs and contracts describe it."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from branchwise.base import storable_values, terminal_safe_json
from branchwise.types import Paragraph, Question

from .question_lines import (
    ANSWERS,
    IDS,
    QUESTION,
    Answers,
    Hops,
    Names,
    OptionalIdentifier,
    OptionalText,
    Row,
    Text,
    UsuallyFalse,
    UsuallyTrue,
    content_id,
    distinct,
    with_answers,
)


def _none_as_empty(value: Any) -> Any:
    return [] if value is None else value


class ParagraphField(BaseModel):
    """A paragraph of a question line."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: Annotated[
        OptionalIdentifier, Field(default=None, validation_alias=AliasChoices("id", "pid", "_id"))
    ]
    title: str
    text: str
    is_supporting: UsuallyFalse = False


class QuestionLine(Row):
    """`{"id"?, "question", "answers", "type"?, "hops"?, "supporting_titles"?, "paragraphs"?}`.

    Further fields: `answerable` (false allows no answers), `supporting_ids`, `licence`. All others
    are kept in `extra`. A question without an id gets one from its content.
    """

    format: ClassVar[str] = "Branchwise's JSONL"

    id: Annotated[OptionalIdentifier, Field(default=None, validation_alias=IDS)]
    question: Annotated[Text, Field(validation_alias=QUESTION)]
    answers: Annotated[Answers, Field(default_factory=list, validation_alias=ANSWERS)]
    type: OptionalText = None
    hops: Hops
    answerable: UsuallyTrue = True
    supporting_titles: Names
    supporting_ids: Names
    paragraphs: Annotated[list[ParagraphField], BeforeValidator(_none_as_empty)] = Field(
        default_factory=list
    )
    licence: OptionalText = None

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "answers" in raw and not isinstance(raw.get("context"), str)

    def to_question(self, source: str) -> Question:
        marked = [p.title for p in self.paragraphs if p.is_supporting]
        texts = (p.text for p in self.paragraphs)
        return Question(
            id=self.id or f"{source}-{content_id(self.question, *texts)}",
            source=source,
            question=self.question,
            answers=with_answers(self.answers, self.answerable, self.others()),
            type=self.type,
            hops=self.hops,
            answerable=self.answerable,
            supporting_titles=distinct(self.supporting_titles or marked),
            supporting_ids=distinct(self.supporting_ids),
            paragraphs=tuple(Paragraph(**dict(p)) for p in self.paragraphs),
            licence=self.licence,
            extra=self.others(),
        )


def line_of(question: Question) -> str:
    """Returns the line of a question, which `QuestionLine` reads as the same question.

    Stores its source in `extra`, because a set has one source, and leaves out its split.
    """
    fields = question.model_dump(exclude={"source", "split", "extra"})
    line = storable_values({"source": question.source, **question.extra, **fields})
    return terminal_safe_json(json.dumps(line, ensure_ascii=False, default=str)) + "\n"
