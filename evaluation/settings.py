"""What `evaluation:` in a recipe may say."""

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from evaluation.baselines import baseline_names
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
        baselines: modules of `evaluation.baselines` that are asked the same questions: `majority`
            is the most frequent answer to the source's part `train`; the others are one turn of
            `baseline_model`: `closed-book` without a passage, `one-shot` with those that a search
            with the question finds, `oracle` with the gold passages.
        baseline_model: model folder, "packaged", or a served name. Null: "packaged" in the
            embedded engine, elsewhere the policy's.
        draw: another number asks everybody anew, so that the same weights can be compared with
            themselves.
    """

    policies: dict[PolicyName, str] = Field(default_factory=dict)
    limit: int = Field(default=200, ge=1)
    bootstrap: int = Field(default=10_000, ge=100)
    temperature: float = Field(default=0.0, ge=0, le=5)
    baselines: tuple[str, ...] = ()
    baseline_model: str | None = None
    draw: int = Field(default=0, ge=0)

    @field_validator("baselines")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not set(names) <= set(baseline_names()):
            raise ValueError(f"no such baseline; known are {', '.join(baseline_names())}")
        if len(set(names)) < len(names):
            raise ValueError("names a baseline twice")
        return names
