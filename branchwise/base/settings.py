"""Base class of every package's settings; `runs.recipe` composes them into one recipe."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator

from .errors import ConfigError
from .http_client import checked_address, shown_url
from .secret_names import looks_like_key
from .text import LEAST, MOST, composed, fits_int64


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


def _checked_identity(identity: str) -> str:
    """Returns the identity of a server in the form that digests contain.

    It may be the server's former address, which has the form of `shown_url` in digests.

    Raises:
        ValueError: If it is blank, contains a control character, or looks like a key.
    """
    if "://" in identity:
        try:
            return shown_url(
                checked_address(
                    identity, "it", "http://127.0.0.1:8000/v1", "an identity is the bare address"
                )
            )
        except ConfigError as error:
            raise ValueError(str(error)) from None
    name = composed(identity.strip())
    if not name or not name.isprintable():
        raise ValueError("is blank, or contains a control character: give a name, or an address")
    if looks_like_key(name):
        raise ValueError("looks like a key, which would be written to the run: give another name")
    return name


ServerIdentity = Annotated[str, AfterValidator(_checked_identity)]
"""Name that stands for a server in digests instead of its address."""


def describe_errors(error: ValidationError, most: int | None = None) -> str:
    """Returns pydantic's errors (at most `most`), each as "`place`: message"."""
    words = []
    for fault in error.errors(include_url=False)[:most]:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
        place = "".join(steps).removeprefix(".")
        message = fault["msg"].removeprefix("Value error, ")
        words.append(f"`{place}`: {message}" if place else message)
    return "; ".join(words)
