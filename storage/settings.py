"""Base of every room's settings; `pipelines.recipe` composes them into one recipe."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable, and strict: an unknown key is an error."""

    # What was given may be a key that stands in the wrong place: no message of pydantic's says it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )
