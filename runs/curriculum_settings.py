"""What `curriculum:` in a recipe may say."""

from pydantic import Field

from storage.settings import Settings


class CycleCounts(Settings):
    """The most cycles of either stage; 0 leaves a stage out.

    Attributes:
        discovery: first.
        refinement: second.
    """

    discovery: int = Field(default=1, ge=0)
    refinement: int = Field(default=1, ge=0)


class CurriculumSettings(Settings):
    """Discovery, then Refinement, each in cycles (EVO-RAG sections 3.4, 3.5 and 3.7).

    Attributes:
        cycles: Most cycles of trees, reward model, policy training and dev evaluation.
        patience: a stage stops when so many cycles in a row have not raised the EM on dev.
        questions: Questions per cycle, disjoint from earlier cycles; defaults to `data.limit`.
        dev_questions: Questions of split `dev` that every policy is evaluated on.
        reward_model: whether each cycle trains one. Its scores decide the pairs where
            `pairs.score` is `reward_model`; else it is trained to be looked at.
    """

    cycles: CycleCounts = CycleCounts()
    patience: int = Field(default=2, ge=1)
    questions: int | None = Field(default=None, ge=1)
    dev_questions: int = Field(default=200, ge=1)
    reward_model: bool = True
