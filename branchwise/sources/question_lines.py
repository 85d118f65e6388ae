"""A question in a file: the format's model checks it and converts it to `Question`."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from ast import literal_eval
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from branchwise.base import Registry, comparable, describe_errors
from branchwise.types import Paragraph, Question


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


def number_as_text(value: Any) -> Any:
    """Returns a number as text; tables export the id 4 and the year 1990 as 4.0 and 1990.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


_UNSET = frozenset({"", "nan", "na", "n/a", "none", "null", "<na>"})
"""Texts that tables have in cells without a number or a truth value, in lower case."""
_NUMPY_ARRAY = re.compile(r"""^\s*\[\s*(['"]).*\1\s+['"]""", re.DOTALL)
"""The text of an array of NumPy: `['a' 'b']`."""
_PLACEHOLDERS = frozenset({"<unk>", "No Answer Present."})
"""What TriviaQA's test set and MS MARCO have instead of an answer."""


def unset_as_none(value: Any) -> Any:
    """Returns None for an empty cell of a table: an empty text, or NaN."""
    return None if value == "" or value != value else value  # noqa: PLR0124


def _whole(value: Any) -> Any:
    """Returns a whole number, also one that a table exports as 2.0 or as text."""
    value = None if str(value).lower() in _UNSET else value
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and float(value).is_integer():
            return int(value)
    return value


_TRUE, _FALSE = frozenset({"true", "yes", "1", "1.0"}), frozenset({"false", "no", "0", "0.0"})


def _truth(value: Any, *, unset: bool) -> Any:
    """Returns true or false, also for 1 and 0, and for their words in a table."""
    word = str(value).lower()
    if value is None or word in _UNSET:
        return unset
    return word in _TRUE if word in _TRUE | _FALSE else value


def _as_texts(value: Any) -> Any:
    """Returns a list of answers from any form that published sets have.

    These are a text, a number, true or false (yes or no), a list of these, a list as JSON text (in
    a table), SQuAD's `{"text": […]}`, and TriviaQA's `{"value", "aliases"}`.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "("):
        value = _list_in(value)
    if isinstance(value, dict) and "value" in value:
        value = [value["value"], value.get("aliases")]
    elif isinstance(value, dict):
        value = value.get("text", [value])
    if isinstance(value, list):
        # A part of another kind stays as it is, and pydantic reports it.
        return [text for part in value for text in _parts(part)]
    return _parts(value)


def _list_in(text: str) -> Any:
    """Returns the list that a cell of a table has as text, of JSON or Python, or the text itself.

    Raises:
        ValueError: If it is the text of an array, which cannot be read.
    """
    is_array = _NUMPY_ARRAY.search(text) is not None  # Python would join its strings
    for read in (json.loads,) if is_array else (json.loads, literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = read(text)
            is_tuple = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
            return list(value) if isinstance(value, list) or is_tuple else text
    if is_array or text.lstrip()[:2] in ("['", '["'):
        raise ValueError('is a list that cannot be read; write it as JSON, such as ["a", "b"]')
    return text


def _parts(value: Any) -> list[Any]:
    """Returns an answer, or the answers of a part of a list."""
    if isinstance(value, list) or (isinstance(value, dict) and "text" in value):
        return list(_as_texts(value))
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    return [] if value is None else [number_as_text(value)]


def _as_list(value: Any) -> Any:
    """Returns a list of names from a list, a JSON list as text, or one name; [] if unset."""
    texts = _as_texts(unset_as_none(value))
    return [text for text in texts if text != ""] if isinstance(texts, list) else texts


def _no_blanks(texts: list[str]) -> list[str]:
    return [text for text in texts if comparable(text) and text not in _PLACEHOLDERS]


Text = Annotated[str, AfterValidator(_not_blank)]
Identifier = Annotated[str, BeforeValidator(number_as_text), AfterValidator(_not_blank)]
OptionalIdentifier = Annotated[Identifier | None, BeforeValidator(unset_as_none)]
OptionalText = Annotated[str | None, BeforeValidator(unset_as_none)]
Hops = Annotated[
    Annotated[int, Field(ge=1, le=32_767)] | None, BeforeValidator(_whole), Field(default=None)
]
"""Number of hops; the limit is that of an int16 column."""
UsuallyTrue = Annotated[bool, BeforeValidator(partial(_truth, unset=True))]
UsuallyFalse = Annotated[bool, BeforeValidator(partial(_truth, unset=False))]
Names = Annotated[list[Identifier], BeforeValidator(_as_list), Field(default_factory=list)]
Answers = Annotated[list[str], BeforeValidator(_as_texts), AfterValidator(_no_blanks)]
"""Gold answers, verbatim; blank ones and placeholders are dropped: any text would match a blank."""
QUESTION = AliasChoices("question", "Question", "query")
ANSWERS = AliasChoices("answers", "answer", "Answer", "Answers", "golden_answers")
IDS = AliasChoices("id", "_id", "qid", "question_id", "query_id", "ID", "uid", "example_id")
"""Names of the fields in published sets."""


_SHOWN_FIELDS = 8


class Row(BaseModel, ABC):
    """Base of all formats. Other fields than the format's go to `Question.extra`."""

    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=True)
    format: ClassVar[str]
    """Name of the format in messages."""

    @classmethod
    def recognises(cls, raw: dict[str, Any]) -> bool:
        """Returns whether `raw` has the typical fields of this format.

        Not called for a source's last format, which is used for all other rows.
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
            has = ", ".join(list(raw)[:_SHOWN_FIELDS]) or "nothing"
            raise ValueError(
                f"{describe_errors(error)} (read as {cls.format}; the row has {has})"
            ) from error

    @abstractmethod
    def to_question(self, source: str) -> Question:
        """Returns the question, under the name of its source.

        Raises:
            ValueError: If an answerable question lacks answers.
        """

    def others(self) -> dict[str, Any]:
        """Returns the fields that are not part of the format."""
        return dict(self.model_extra or {})


R = TypeVar("R", bound=Row)

READERS: Registry[tuple[type[Row], ...]] = Registry("source", "branchwise.sources.readers")
"""Formats by source, tried in order; the last one if none is recognised."""


def register_reader(source: str) -> Callable[[type[R]], type[R]]:
    """Class decorator: adds the format of a source's files.

    Args:
        source: Name in `data.source`.
    """

    def register(row: type[R]) -> type[R]:
        READERS.add(source, (row,), row.__module__)
        return row

    return register


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns `texts` without repetitions, in order."""
    return tuple(dict.fromkeys(texts))


def with_answers(
    answers: Sequence[str], answerable: bool = True, extra_fields: Iterable[str] = ()
) -> tuple[str, ...]:
    """Returns the distinct answers.

    Args:
        answers: Gold answers.
        answerable: Whether the question has an answer.
        extra_fields: Names of the row's unknown fields. The message names one that looks misspelt.

    Raises:
        ValueError: If an answerable question lacks answers.
    """
    if answerable and not answers:
        near = get_close_matches("answers", extra_fields, 1)
        hint = f": rename `{near[0]}` to `answers`" if near else ""
        raise ValueError(f"lacks answers{hint}")
    return distinct(answers)


def first_words(text: str) -> str:
    """Returns the first eight words, the title of a text without one."""
    return " ".join(text.split()[:8])


def content_id(*texts: str) -> str:
    """Returns an id for a row without one: 16 hex digits of a hash of its content."""
    digest = hashlib.sha256("\x1f".join(texts).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def joined(sentences: Sequence[str]) -> str:
    """Returns one text. HotpotQA's sentences start with a space, 2WikiMultiHopQA's do not."""
    glue = "" if any(sentence.startswith(" ") for sentence in sentences[1:]) else " "
    return glue.join(sentences).strip()


def paragraph(title: str, text: str, is_supporting: bool) -> Paragraph:
    """Returns a paragraph of a question."""
    return Paragraph(title=title, text=text, is_supporting=is_supporting)
