"""Base class of every package's settings; `runs.recipe` composes them into one recipe."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from .text import LEAST, MOST, fits_int64


class Settings(BaseModel):
    """Immutable, strict settings: unknown keys and numbers that no table can hold are errors."""

    # Hide inputs in pydantic's messages, because a misplaced value may be an API key.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

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
