"""What `evaluation:` in a recipe may say."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from agent.settings import AgentSettings
from engines.settings import JudgeSettings, ModelSettings
from evaluation.baselines import baseline_names
from rewards.answer_judge import JudgePrompt
from storage.settings import Settings

PolicyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")]
"""Names a folder of the run."""


class EvaluatedPolicy(ModelSettings, AgentSettings):
    """A policy to compare, or a rater, with settings of `policy:` and `agent:` in one block.

    Those that it leaves out are the recipe's. Only if it names another `engine` or `base_url`, it
    inherits nothing about the endpoint (address, key, price, weights, server arguments, form of
    constraints). A model's name alone is short for `{model: …}`.

    Attributes:
        model: model folder, "packaged" or served name; `{run}` stands for the run's name.
        temperature: Sampling temperature; defaults to `evaluation.temperature`, and for a rater to
            `difficulty.temperature`.
    """

    model: str
    temperature: float = Field(default=0.0, ge=0, le=5)

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _write_own(self, write: SerializerFunctionWrapHandler) -> Any:
        """Writes the settings that the block names: only those are not the recipe's."""
        own = _own(self, write)
        return own["model"] if own.keys() == {"model"} else own


class EvaluationJudge(JudgeSettings):
    """A model that says whether answers are right; what it leaves out is as in `judge:`.

    If it names another `engine` or `base_url`, it inherits nothing about the endpoint.

    Attributes:
        prompt: `yes-no` (ARENA) shows the gold answers and the response; `true-false`
            (R1-Searcher) shows the question, too. A reply of another word gives no verdict.
        reads: the response is the `answer`, or all that the policy wrote (`reply`).
        temperature: never that of `judge:`.
    """

    prompt: JudgePrompt = "yes-no"
    reads: Literal["answer", "reply"] = "answer"

    @model_serializer(mode="wrap")
    def _write_own(self, write: SerializerFunctionWrapHandler) -> Any:
        return _own(self, write)


def _own(block: Settings, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Writes the settings that a block names."""
    return {name: value for name, value in write(block).items() if name in block.model_fields_set}


class EvaluationSettings(Settings):
    """Which policies are compared, and on what.

    Attributes:
        policies: name → model folder, or a block with settings of its own (see the next section);
            the first one is the baseline of the differences. Entries whose folder is missing are
            an error.
        limit: how many questions.
        bootstrap: resamples of the paired interval.
        temperature: Sampling temperature of the answers; 0 is greedy.
        baselines: modules of `evaluation.baselines` that are asked the same questions: `majority`
            is the most frequent answer to the source's split `train`; the others are one turn of
            `baseline_model`: `closed-book` without a passage, `one-shot` with those that a search
            with the question finds, `oracle` with the gold passages.
        baseline_model: model folder, "packaged", or a served name. Unset: "packaged" in the
            embedded engine, elsewhere the policy's.
        draw: another number asks everybody anew, so that the same weights can be compared with
            themselves.
        judge: Model that judges stored predictions; unset: none.
    """

    policies: dict[PolicyName, EvaluatedPolicy] = Field(default_factory=dict)
    limit: int = Field(default=200, ge=1)
    bootstrap: int = Field(default=10_000, ge=100)
    temperature: float = Field(default=0.0, ge=0, le=5)
    baselines: tuple[str, ...] = ()
    baseline_model: str | None = None
    draw: int = Field(default=0, ge=0)
    judge: EvaluationJudge | None = None

    @field_validator("baselines")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not set(names) <= set(baseline_names()):
            raise ValueError(f"no such baseline; known are {', '.join(baseline_names())}")
        if len(set(names)) < len(names):
            raise ValueError("names a baseline twice")
        return names
