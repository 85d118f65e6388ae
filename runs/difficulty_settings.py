"""Settings of the `difficulty:` block."""

from typing import Annotated

from pydantic import Field, field_validator

from analysis.difficulty import LABELS
from base.settings import Settings
from evaluation.settings import EvaluatedPolicy, PolicyName

Wanted = Annotated[int, Field(ge=1, le=10**9)]


class DifficultySettings(Settings):
    """How `branchwise select` rates questions and draws stages (R1-Searcher section 2.1).

    Attributes:
        policy: Rater, in the form of an entry of `evaluation.policies`; defaults to the recipe's
            policy, and its temperature to 1.
        rollouts: Most rollouts per question. Sampling ends at the first correct one (cover-EM);
            without one the question is `unsolved`.
        easy: Most rollouts that an `easy` question needs for its first correct one.
        medium: Most rollouts that a `medium` question needs; one that needs more is `difficult`.
        stages: Name → label → number of questions, such as `{"1": {medium: 350}}`. A label may name
            a source: `hotpotqa/medium`. If there are fewer questions, proportions are kept.
            Defaults to the paper's.
    """

    policy: EvaluatedPolicy | None = None
    rollouts: int = Field(default=32, ge=1, le=10_000)
    easy: int = Field(default=9, ge=1)
    medium: int = Field(default=20, ge=1)
    stages: dict[PolicyName, Annotated[dict[str, Wanted], Field(min_length=1)]] = Field(
        default={"1": {"medium": 350}, "2": {"medium": 3648, "difficult": 4500}}
    )

    @field_validator("stages")
    @classmethod
    def _check_buckets(cls, stages: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        names = [name for wanted in stages.values() for name in wanted]
        if unknown := [name for name in names if name.rpartition("/")[2] not in LABELS]:
            raise ValueError(f"no such label ({unknown[0]}). Choose among {', '.join(LABELS)}")
        if len({"/" in name for name in names}) > 1:
            raise ValueError("names sources for some labels only. Name them for all, or for none")
        return stages
