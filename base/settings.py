"""Base class of every package's settings; `runs.recipe` composes them into one recipe."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from base.seeds import LEAST, MOST, fits_int64
from base.text import replace_surrogates


class Settings(BaseModel):
    """Immutable, strict settings: unknown keys and numbers that no table can hold are errors."""

    # Hide inputs in pydantic's messages, because a misplaced value may be an API key.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _check_whole(cls, value: Any) -> Any:
        r"""Rejects lone surrogates (YAML's "\ud800"), which no file, hash or request can hold."""
        if any(replace_surrogates(text) != text for text in _texts_in(value)):
            raise ValueError(
                "contains half a character (a lone surrogate). Write the whole character"
            )
        return value

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and not fits_int64(value):
            raise ValueError(f"does not fit into 64 bits: give {LEAST} to {MOST}")
        return value


def describe_errors(error: ValidationError, most: int | None = None) -> str:
    """Returns pydantic's errors (at most `most`), each as "`place`: message"."""
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
