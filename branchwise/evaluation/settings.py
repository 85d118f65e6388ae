"""Settings of the `evaluation:` block."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from branchwise.base import Settings
from branchwise.engines import JudgeSettings, ModelSettings

from .answer_judge import JudgePrompt
from .baselines import BASELINES

PolicyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")]
"""Names a folder of the run."""


class EvaluatedPolicy(ModelSettings):
    """A policy to compare, or a rater: settings of `policy:`, and those of `agent:` in a block.

    Defaults to the recipe's settings. With another `engine` or `base_url`, it inherits nothing
    about the endpoint (address, identity, key, price, weights, server arguments, form of
    constraints). With another `model` at an `openai` endpoint, it inherits no price and no weights.
    A model name alone stands for `{model: …}`.

    Attributes:
        model: Model folder, "packaged" or served name; `{run}` is replaced by the run's name.
        temperature: Sampling temperature; defaults to `evaluation.temperature`, and for a rater to
            1.
        agent: Settings of `agent:` that differ. With another `protocol`, only settings that both
            protocols have are inherited.
    """

    model: str
    temperature: float = Field(default=0.0, ge=0, le=5)
    agent: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _write_named(self, write: SerializerFunctionWrapHandler) -> Any:
        """Writes the settings that the block names: only those are not the recipe's."""
        settings = _explicit_settings(self, write)
        return settings["model"] if settings.keys() == {"model"} else settings


class EvaluationJudge(JudgeSettings):
    """Model that judges whether answers are right. Defaults to the settings of `judge:`.

    With another `engine` or `base_url`, it inherits nothing about the endpoint.

    Attributes:
        prompt: `yes-no` (ARENA) shows the gold answers and the response; `true-false`
            (R1-Searcher) also shows the question. Any other word as reply gives no verdict.
        reads: Text to judge: the `answer`, or the policy's whole `reply`.
        temperature: Sampling temperature; not inherited from `judge:`.
    """

    prompt: JudgePrompt = "yes-no"
    reads: Literal["answer", "reply"] = "answer"

    @model_serializer(mode="wrap")
    def _write_named(self, write: SerializerFunctionWrapHandler) -> Any:
        return _explicit_settings(self, write)


def _explicit_settings(block: Settings, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Writes the settings that a block names."""
    return {name: value for name, value in write(block).items() if name in block.model_fields_set}


class EvaluationSettings(Settings):
    """Policies to compare, and their questions.

    Attributes:
        policies: Name → model folder, or a block of settings (see the next section). Each policy
            is compared with all before it; by source, type or hops only with the first. A missing
            folder is an error.
        limit: Number of questions.
        temperature: Sampling temperature of the answers; 0 is greedy.
        baselines: Baselines to evaluate on the same questions. `majority` is the most frequent
            answer in the source's `train` split. The others are one turn of `baseline_model`:
            `closed-book` without passages, `one-shot` with the passages that the question
            retrieves, `oracle` with the gold passages. Its default is "packaged" in the embedded
            engine, otherwise the policy's model.
        baseline_model: Model of the baselines: a model, or a block of settings as in `policies`.
        draw: Sample index. Another number draws fresh answers for every policy, so that a model can
            be compared with itself.
        judge: Model that judges stored predictions. Unset: none.
    """

    policies: dict[PolicyName, EvaluatedPolicy] = Field(default_factory=dict)
    limit: int = Field(default=200, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=5)
    baselines: tuple[str, ...] = ()
    baseline_model: EvaluatedPolicy | None = None
    draw: int = Field(default=0, ge=0)
    judge: EvaluationJudge | None = None

    @field_validator("baselines")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in BASELINES:
                raise PydanticCustomError(
                    "unknown_name", "{text}", {"text": BASELINES.unknown_message(name)}
                )
        if len(set(names)) < len(names):
            raise ValueError("names a baseline twice")
        return names
