"""A question in a file: the format's model checks it and converts it to `Question`."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from base.settings import describe_errors
from storage.records import Paragraph, Question


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _no_blanks(texts: list[str]) -> list[str]:
    return [text for text in texts if text.strip()]


Text = Annotated[str, AfterValidator(_not_blank)]
Identifier = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_not_blank)]
Answers = Annotated[list[str], AfterValidator(_no_blanks)]
"""Gold answers, verbatim; blank ones are dropped, because any text would match them."""


def _as_texts(value: Any) -> Any:
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, list):
        return [item.get("text", item) if isinstance(item, dict) else item for item in value]
    return value


AnswerTexts = Annotated[Answers, BeforeValidator(_as_texts)]
"""Gold answers as text, as SQuAD's `{"text": …}`, or true or false for yes and no."""


class Row(BaseModel, ABC):
    """Base of all formats. Other fields than the format's go to `Question.extra`."""

    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=True)
    format: ClassVar[str]
    """Name of the format in messages."""

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        """Returns whether `raw` has the typical fields of this format.

        Not asked of a source's last format, which is used for all other rows.
        """
        return True

    @classmethod
    def expand(cls, raw: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Returns one object per question of `raw`; by default, `raw` is one question.

        Raises:
            ValueError: If `raw` cannot be taken apart.
        """
        return (raw,)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Returns the checked row.

        Raises:
            ValueError: If the row is faulty; lists all faults in one line.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise ValueError(f"{describe_errors(error)} (read as {cls.format})") from error

    @abstractmethod
    def to_question(self, source: str) -> Question:
        """Returns the question, under the name of its source.

        Raises:
            ValueError: If an answerable question lacks answers.
        """

    def others(self) -> dict[str, Any]:
        """Returns the fields that are not part of the format."""
        return dict(self.model_extra or {})


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns `texts` without repetitions, in order."""
    return tuple(dict.fromkeys(texts))


def with_answers(
    answers: Sequence[str], answerable: bool = True, others: Iterable[str] = ()
) -> tuple[str, ...]:
    """Returns the distinct answers.

    Args:
        answers: Gold answers.
        answerable: Whether the question has an answer.
        others: Names of the row's unknown fields. The message names one that looks misspelt.

    Raises:
        ValueError: If an answerable question lacks answers.
    """
    if answerable and not answers:
        near = get_close_matches("answers", others, 1)
        hint = f": rename `{near[0]}` to `answers`, a list of text" if near else ""
        raise ValueError(f"lacks answers{hint}")
    return distinct(answers)


def first_words(text: str) -> str:
    """Returns the first eight words, the title of a text without one."""
    return " ".join(text.split()[:8])


def content_id(*texts: str) -> str:
    """Returns an id for a row without one: 16 hex digits of a hash of its content."""
    whole = hashlib.sha256("\x1f".join(texts).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()[:16]


def joined(sentences: Sequence[str]) -> str:
    """Returns one text. HotpotQA's sentences start with a space, 2WikiMultiHopQA's do not."""
    glue = "" if any(sentence.startswith(" ") for sentence in sentences[1:]) else " "
    return glue.join(sentences).strip()


def paragraph(title: str, text: str, is_supporting: bool) -> Paragraph:
    """Returns a paragraph of a question."""
    return Paragraph(title=title, text=text, is_supporting=is_supporting)
