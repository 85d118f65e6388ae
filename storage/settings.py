"""Base of every room's settings; `pipelines.recipe` composes them into one recipe."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable, and strict: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
