"""Open-domain sets, without passages: Bamboogle, NQ, PopQA, and plain questions with answers."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from branchwise.types import Question

from .question_lines import (
    ANSWERS,
    IDS,
    QUESTION,
    Answers,
    Identifier,
    OptionalIdentifier,
    OptionalText,
    Row,
    Text,
    content_id,
    with_answers,
)


class PlainRow(Row):
    """Columns `Question` and `Answer` (either case; the answer may be a list), perhaps `id`.

    TriviaQA of the hub is read as this, with all aliases of its answers.
    """

    format: ClassVar[str] = "a question with its answer"
    usual_type: ClassVar[str | None] = None
    usual_hops: ClassVar[int | None] = None

    id: Annotated[OptionalIdentifier, Field(default=None, validation_alias=IDS)]
    question: Annotated[Text, Field(validation_alias=QUESTION)]
    answer: Annotated[Answers, Field(validation_alias=ANSWERS)]
    type: OptionalText = None

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


class PopRow(Row):
    """PopQA's TSV, single-hop questions about an entity's property.

    Columns `id`, `question`, `possible_answers`, `prop`, `s_wiki_title`, …
    """

    format: ClassVar[str] = "PopQA's own format"

    id: Identifier
    question: Text
    possible_answers: Answers
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
