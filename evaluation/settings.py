"""What `evaluation:` in a recipe may say."""

from pydantic import Field

from storage.settings import Settings


class EvaluationSettings(Settings):
    """Which policies are compared, and on what.

    Attributes:
        policies: name → model folder (or "packaged"); the first one is the baseline of the
            differences. Entries whose folder is missing are an error.
        limit: how many questions.
        bootstrap: resamples of the paired interval.
        temperature: of the answers; 0 is greedy.
    """

    policies: dict[str, str] = Field(default_factory=dict)
    limit: int = Field(default=200, ge=1)
    bootstrap: int = Field(default=10_000, ge=100)
    temperature: float = Field(default=0.0, ge=0, le=5)
