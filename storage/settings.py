"""Base of every room's settings; `pipelines.recipe` composes them into one recipe."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from storage.seeds import LEAST, MOST, fits


class Settings(BaseModel):
    """Immutable, and strict: an unknown key is an error, and so is a number that no table holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and not fits(value):
            raise ValueError(f"does not fit into 64 bits: give {LEAST} to {MOST}")
        return value
