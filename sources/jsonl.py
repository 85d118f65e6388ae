"""Our own JSONL: one question per line, as docs and contracts describe it."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from base.terminal_escape import inert_json
from base.text import storable_values
from sources.rows import Answers, Identifier, Row, Text, distinct, with_answers
from storage.records import Paragraph, Question

NoneAsEmpty = BeforeValidator(lambda value: [] if value is None else value)
"""Reads a list that is not set, as in exports of tables, as an empty one."""


class ParagraphField(BaseModel):
    """A paragraph of a question line."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: Annotated[
        Identifier | None, Field(default=None, validation_alias=AliasChoices("id", "pid"))
    ]
    title: str
    text: str
    is_supporting: bool = False


class QuestionLine(Row):
    """`{"id", "question", "answers", "type"?, "hops"?, "supporting_titles"?, "paragraphs"?}`.

    Further fields: `answerable` (false allows no answers), `supporting_ids`, `licence`. All others
    are kept in `extra`.
    """

    format: ClassVar[str] = "Branchwise's JSONL"

    id: Identifier
    question: Text
    answers: Answers = Field(default_factory=list)
    type: str | None = None
    hops: int | None = Field(default=None, ge=1, le=32_767)  # limit of an int16 column
    answerable: bool = True
    supporting_titles: Annotated[list[str], NoneAsEmpty] = Field(default_factory=list)
    supporting_ids: Annotated[list[Identifier], NoneAsEmpty] = Field(default_factory=list)
    paragraphs: Annotated[list[ParagraphField], NoneAsEmpty] = Field(default_factory=list)
    licence: str | None = None

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "answers" in raw

    def to_question(self, source: str) -> Question:
        marked = [p.title for p in self.paragraphs if p.is_supporting]
        return Question(
            id=self.id,
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
    return inert_json(json.dumps(line, ensure_ascii=False, default=str)) + "\n"
