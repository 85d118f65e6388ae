"""StrategyQA: yes/no questions whose facts serve as their passages."""

import re
from typing import Annotated, ClassVar

from pydantic import Field

from branchwise.types import Question

from .question_lines import (
    ANSWERS,
    IDS,
    Answers,
    Hops,
    Identifier,
    Row,
    Text,
    distinct,
    first_words,
    paragraph,
    with_answers,
)

_VERBS = "is are was were has have had can could do does did will would may must"
_VERB = re.compile(rf"\s(?:{'|'.join(_VERBS.split())})\b")


class StrategyRow(Row):
    """`{"qid" or "id", "question", "answer" or "answers", "facts", "decomposition"}`.

    Each fact is a supporting paragraph. The steps of the decomposition have no answers, unlike
    MuSiQue's, so they are kept in `extra` under another name, `sub_questions`.
    """

    format: ClassVar[str] = "StrategyQA's own format"

    id: Annotated[Identifier, Field(validation_alias=IDS)]
    question: Text
    answers: Annotated[Answers, Field(validation_alias=ANSWERS)]
    facts: list[str] = Field(default_factory=list)
    decomposition: list[str] = Field(default_factory=list)
    type: str = "yesno"
    hops: Hops

    def to_question(self, source: str) -> Question:
        facts = tuple(paragraph(_subject(f), f, True) for f in self.facts if f.strip())
        return Question(
            id=self.id,
            source=source,
            question=self.question,
            answers=with_answers(self.answers),
            type=self.type,
            hops=self.hops or len(self.decomposition) or None,
            supporting_titles=distinct(fact.title for fact in facts),
            paragraphs=facts,
            extra={**self.others(), "sub_questions": self.decomposition},
        )


def _subject(fact: str) -> str:
    """Returns the words before the first verb, because a warm start searches for titles."""
    subject = _VERB.split(fact.strip(), maxsplit=1)[0]
    return subject if subject == first_words(subject) else first_words(fact)
