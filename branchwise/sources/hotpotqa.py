"""HotpotQA and 2WikiMultiHopQA in their own formats (a JSON list) and in the hub's."""

import json
from contextlib import suppress
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field

from branchwise.types import Paragraph, Question

from .question_lines import Identifier, Row, Text, distinct, joined, paragraph


def _titled(value: Any, *columns: str) -> Any:
    """Returns `[(title, …), …]`, also from the hub's parallel lists `{"title": […], column: […]}`.

    Args:
        columns: Names of the second list; the first that exists is read.
    """
    if isinstance(value, str):  # 2WikiMultiHopQA at the hub has lists as JSON text
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, dict):
        titles = value.get("title")
        entries = next((value[column] for column in columns if column in value), None)
        if not isinstance(titles, list) or not isinstance(entries, list):
            return value
        if len(titles) != len(entries):
            raise ValueError(
                f"the lists have {len(titles)} and {len(entries)} entries, but need the same number"
            )
        return list(zip(titles, entries, strict=True))
    if isinstance(value, list):
        return [tuple(item) if isinstance(item, list) else item for item in value]
    return value


SupportingFacts = Annotated[
    list[tuple[str, int]], BeforeValidator(lambda value: _titled(value, "sent_id"))
]
Context = Annotated[
    list[tuple[str, list[str]]],
    BeforeValidator(lambda value: _titled(value, "sentences", "content")),
]


class HotpotRow(Row):
    """`{"_id", "question", "answer", "type", "supporting_facts", "context"}`.

    2WikiMultiHopQA adds `evidences` and the like, kept in `extra`.
    """

    format: ClassVar[str] = "HotpotQA's or 2WikiMultiHopQA's own format"

    id: Identifier = Field(validation_alias=AliasChoices("_id", "id"))
    question: Text
    answer: Text
    type: str | None = None
    supporting_facts: SupportingFacts = Field(default_factory=list)
    context: Context = Field(default_factory=list)

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return "supporting_facts" in raw or "context" in raw

    def to_question(self, source: str) -> Question:
        titles = distinct(title for title, _ in self.supporting_facts)
        facts = [[title, sentence] for title, sentence in self.supporting_facts]
        return Question(
            id=self.id,
            source=source,
            question=self.question,
            answers=(self.answer,),
            type=self.type,
            hops=hops_of(self.type),
            supporting_titles=titles,
            paragraphs=paragraphs_of(self.context, titles),
            extra={**self.others(), "supporting_facts": facts},
        )


def hops_of(kind: str | None) -> int:
    """Returns two, but four for 2WikiMultiHopQA's bridge comparisons (two bridges, then a
    comparison).
    """
    return 4 if kind == "bridge_comparison" else 2


def paragraphs_of(
    context: list[tuple[str, list[str]]], supporting: tuple[str, ...]
) -> tuple[Paragraph, ...]:
    """Returns the context as paragraphs, and marks those with a supporting title."""
    return tuple(
        paragraph(title, joined(sentences), title in supporting) for title, sentences in context
    )
