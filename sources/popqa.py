"""PopQA in its own TSV: single-hop questions about an entity's property."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from sources.rows import Answers, Identifier, Row, Text, with_answers
from storage.records import Question


def _json_list(value: Any) -> Any:
    """Parses a column that contains a JSON list as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not a JSON list") from error


class PopRow(Row):
    """Columns `id`, `question`, `possible_answers`, `prop`, `s_wiki_title`, …"""

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
