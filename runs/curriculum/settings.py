"""Settings of the `curriculum:` block."""

from pydantic import Field

from base.settings import Settings


class CycleCounts(Settings):
    """Most cycles per stage; 0 skips a stage.

    Attributes:
        discovery: Cycles of the first stage.
        refinement: Cycles of the second stage.
    """

    discovery: int = Field(default=1, ge=0)
    refinement: int = Field(default=1, ge=0)


class CurriculumSettings(Settings):
    """Discovery, then Refinement, each in cycles (EVO-RAG sections 3.4, 3.5 and 3.7).

    Attributes:
        cycles: Most cycles of trees, reward model, policy training and dev evaluation.
        patience: Cycles in a row without a higher dev EM after which a stage stops.
        questions: Questions per cycle, disjoint from earlier cycles; defaults to `data.limit`.
        dev_questions: Questions of split `dev` that every policy is evaluated on.
        reward_model: Whether each cycle trains a reward model. With `pairs.score: reward_model` its
            scores decide the pairs; otherwise it is only reported.
    """

    cycles: CycleCounts = CycleCounts()
    patience: int = Field(default=2, ge=1)
    questions: int | None = Field(default=None, ge=1)
    dev_questions: int = Field(default=200, ge=1)
    reward_model: bool = True
