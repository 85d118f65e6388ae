"""What `evaluation:` in a recipe may say."""

from typing import Annotated

from pydantic import Field, StringConstraints

from storage.settings import Settings

PolicyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")]
"""Names a folder of the run."""


class EvaluationSettings(Settings):
    """Which policies are compared, and on what.

    Attributes:
        policies: name → model folder (or "packaged"); the first one is the baseline of the
            differences. Entries whose folder is missing are an error.
        limit: how many questions.
        bootstrap: resamples of the paired interval.
        temperature: of the answers; 0 is greedy.
    """

    policies: dict[PolicyName, str] = Field(default_factory=dict)
    limit: int = Field(default=200, ge=1)
    bootstrap: int = Field(default=10_000, ge=100)
    temperature: float = Field(default=0.0, ge=0, le=5)
