"""Questions about one given passage: SQuAD, MRQA's sets, BoolQ, and lines of that kind."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar
from urllib.parse import unquote

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from branchwise.base import comparable, describe_errors
from branchwise.types import Question

from .gold import CLOSED_ANSWERS, title_key
from .question_lines import (
    ANSWERS,
    IDS,
    Answers,
    OptionalIdentifier,
    OptionalText,
    Row,
    Text,
    UsuallyFalse,
    content_id,
    first_words,
    paragraph,
    with_answers,
)
from .splits import split_of

_MRQA_TITLE = re.compile(r"\[TLE\]\s*(.*?)\s*\[(?:SEP|PAR|DOC)\]", re.DOTALL)
_MRQA_MARK = re.compile(
    r"\s*(?:(?:\[(?:TLE|PAR|SEP|DOC)\]|</?(?:P|Table|Tr|Td|Th|Ul|Ol|Li|Dl|Dt|Dd)>)\s*)+"
)
_TOKENS = {"question_tokens", "detected_answers"}
"""MRQA's tokens and character offsets, which are larger than the questions."""


class _Passage(BaseModel):
    """A passage with its questions: a paragraph of SQuAD, a line of MRQA."""

    model_config = ConfigDict(extra="ignore", strict=True)

    context: Text
    qas: list[dict[str, Any]]

    def rows(self, title: str, passage: str) -> list[dict[str, Any]]:
        """Returns a row per question."""
        shared = {"title": title, "passage": passage}
        return [{k: v for k, v in qa.items() if k not in _TOKENS} | shared for qa in self.qas]


class _Article(BaseModel):
    """An article of SQuAD's release."""

    model_config = ConfigDict(extra="ignore", strict=True)

    title: str = ""
    paragraphs: list[_Passage]


class ReadingRow(Row):
    """`{"id", "question", "answers", "passage", "title"?, "kind"?}`, or several questions at once.

    `expand` takes SQuAD's articles (1.1 and 2.0) and MRQA's lines apart. SQuAD's impossible
    questions have `answerable` false. Rows of SQuAD at the hub have `context` instead of `passage`.
    BoolQ's lines have no id, and `answer` true or false.

    The split is a hash of the title, or of the passage if it has none. All questions about one
    passage are then in one split, and a reader is tested on passages that it has not seen.
    """

    format: ClassVar[str] = "a question about a passage"

    id: Annotated[OptionalIdentifier, Field(default=None, validation_alias=IDS)]
    question: Text
    answers: Annotated[Answers, Field(default_factory=list, validation_alias=ANSWERS)]
    passage: Annotated[Text, Field(validation_alias=AliasChoices("passage", "context"))]
    title: OptionalText = None
    kind: OptionalText = None
    is_impossible: UsuallyFalse = False
    licence: str | None = None

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        return isinstance(raw.get("context"), str) and "supporting_facts" not in raw

    @classmethod
    def expand(cls, raw: dict[str, Any]) -> Iterable[dict[str, Any]]:
        try:
            if "qas" in raw:
                return _of_mrqa(_Passage.model_validate(raw))
            if "paragraphs" in raw:
                return _of_squad(_Article.model_validate(raw))
        except ValidationError as error:
            name = "MRQA's line" if "qas" in raw else "SQuAD's article"
            raise ValueError(f"{describe_errors(error)} (read as {name})") from error
        if "header" in raw:  # the first line of MRQA's files describes the set
            return ()
        answers = raw.get("answers")
        if isinstance(answers, dict) and answers.get("text") == []:  # SQuAD 2.0 of the hub
            raw = {**raw, "is_impossible": True}
        return (raw,)

    def to_question(self, source: str) -> Question:
        own_title = (self.title or "").strip()
        title = own_title or first_words(self.passage)
        answers = with_answers(self.answers, not self.is_impossible)
        return Question(
            id=self.id or f"{source}-{content_id(self.question, self.passage)}",
            source=source,
            question=self.question,
            answers=() if self.is_impossible else answers,
            type=self.kind or self._kind(answers),
            hops=1,
            answerable=not self.is_impossible,
            supporting_titles=() if self.is_impossible else (title,),
            paragraphs=(paragraph(title, self.passage, not self.is_impossible),),
            split=split_of(title_key(own_title) if own_title else comparable(self.passage)),
            licence=self.licence,
            extra=self.others(),
        )

    def _kind(self, answers: Iterable[str]) -> str:
        if self.is_impossible:
            return "unanswerable"
        return "yesno" if CLOSED_ANSWERS.issuperset(map(str.lower, answers)) else "span"


def _of_squad(article: _Article) -> list[dict[str, Any]]:
    """Returns a row per question. SQuAD's titles are file names: "Beyonc%C3%A9_Knowles"."""
    title = unquote(article.title).replace("_", " ")
    return [row for part in article.paragraphs for row in part.rows(title, part.context)]


def _of_mrqa(line: _Passage) -> list[dict[str, Any]]:
    """Returns a row per question. The first [TLE] is the title; other marks become spaces."""
    title = _MRQA_TITLE.search(line.context)
    text = line.context.replace(title[0], " ", 1) if title else line.context
    return line.rows(title[1] if title else "", _MRQA_MARK.sub(" ", text).strip())
