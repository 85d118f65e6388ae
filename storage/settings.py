"""Base of every room's settings; `runs.recipe` composes them into one recipe."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from storage.seeds import LEAST, MOST, fits
from storage.text import storable


class Settings(BaseModel):
    """Immutable, and strict: an unknown key is an error, and so is a number that no table holds."""

    # What was given may be a key that is in the wrong place: no message of pydantic's says it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _check_whole(cls, value: Any) -> Any:
        r"""YAML's "\ud800" is half of a character, which no file, hash or request can hold."""
        if any(storable(text) != text for text in _texts_in(value)):
            raise ValueError("holds half of a character (a lone surrogate); write it whole")
        return value

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and not fits(value):
            raise ValueError(f"does not fit into 64 bits: give {LEAST} to {MOST}")
        return value


def in_words(error: ValidationError, most: int | None = None) -> str:
    """Returns the first faults that pydantic found, each as "`place`: message"."""
    words = []
    for fault in error.errors(include_url=False)[:most]:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
        place = "".join(steps).removeprefix(".")
        message = fault["msg"].removeprefix("Value error, ")
        words.append(f"`{place}`: {message}" if place else message)
    return "; ".join(words)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield from (text for one in value for text in _texts_in(one))
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for one in pair for text in _texts_in(one))
