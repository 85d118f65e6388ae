"""The trainings of `train-grpo`: each with its recipe, its questions and its folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from branchwise.agent import protocol_of, root_of
from branchwise.base import ConfigError, describe_errors, read_inside
from branchwise.runs import Recipe, StageContext, data_settings
from branchwise.sources import load_data, repeated_questions
from branchwise.training import GrpoStage
from branchwise.types import Message, Question

_CANARY_PROMPTS = 4
_DEV_QUESTIONS = 100
"""Questions per evaluation during the training."""


@dataclass(frozen=True)
class GrpoTraining:
    """One training of the stage `train-grpo`.

    Attributes:
        recipe: Recipe with this training's rewards and number of batches.
    """

    recipe: Recipe
    target: Path
    questions: Sequence[Question]


def rollout_recipe(context: StageContext) -> Recipe:
    """Returns the recipe with the questions of the training.

    Raises:
        ConfigError: If rollouts cannot differ, the ratio of the loss would be wrong, or the engine
            cannot serve a policy in training.
    """
    recipe = context.recipe
    settings, policy = recipe.training.grpo, recipe.policy
    if policy.engine == "openai":
        raise ConfigError(
            "policy.engine: openai cannot load the weights of a policy in training. Use "
            "engine: openvino or engine: vllm (with or without a base_url)"
        )
    if recipe.active_verifier is not None:
        raise ConfigError(
            "verifier: train-grpo does not ask a verifier, so correct refusals would lose their "
            "reward. Set verifier: null"
        )
    if policy.temperature == 0:
        raise ConfigError(
            "policy.temperature is 0, so all rollouts of a question are the same. Set it to 1.0"
        )
    if settings.ratio == "engine" and (policy.temperature, policy.top_p) != (1.0, 1.0):
        raise ConfigError(
            "training.grpo.ratio: the engine returns log-probabilities at temperature 1. Set "
            "policy.temperature: 1.0 and policy.top_p: 1.0, or use ratio: trainer"
        )
    selects = any(stage.select for stage in settings.stages)
    update = {"limit": None if selects else context.limit or settings.questions}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=update)})


def grpo_trainings(
    context: StageContext, recipe: Recipe, questions: Sequence[Question], target: Path
) -> Iterator[GrpoTraining]:
    """Yields the trainings of `training.grpo.stages`, or the only one.

    Raises:
        ConfigError: If a stage's rewards or questions cannot be used.
    """
    most = context.limit or recipe.training.grpo.questions
    stages = recipe.training.grpo.stages
    if not stages:
        yield GrpoTraining(recipe, target, questions[:most])
        return
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        folder = target if last else target.with_name(f"{target.name}-{stage.name}")
        trained = questions[:most]
        if stage.select is not None:
            trained = _selected(context, stage.select, questions)[: context.limit]
        yield GrpoTraining(with_stage(recipe, stage), folder, trained)


def with_stage(recipe: Recipe, stage: GrpoStage) -> Recipe:
    """Returns the recipe of one stage: its rewards and batches, and no other stage.

    Raises:
        ConfigError: If its rewards are not those of the scheme.
    """
    rewards = {**recipe.rewards.model_dump(), **stage.rewards}
    try:
        changed = type(recipe.rewards).model_validate(rewards)
    except ValidationError as error:
        raise ConfigError(
            f"training.grpo.stages: rewards of stage {stage.name}: {describe_errors(error)}"
        ) from error
    grpo = recipe.training.grpo
    # Without the other stages, so that a change of one does not repeat the finished ones.
    block = grpo.model_copy(update={"batches": stage.batches or grpo.batches, "stages": ()})
    training = recipe.training.model_copy(update={"grpo": block})
    return recipe.model_copy(update={"rewards": changed, "training": training})


def _selected(
    context: StageContext, name: str, questions: Sequence[Question]
) -> Sequence[Question]:
    file = f"select/stage-{name}.jsonl"
    try:
        lines = read_inside(context.run, file, 1 << 30).decode().splitlines()
        selected_ids = {str(json.loads(line)["id"]) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{context.run / file}: cannot be read ({error}). `branchwise select` writes it; or "
            "leave `select` out of training.grpo.stages"
        ) from error
    selected = [question for question in questions if question.id in selected_ids]
    if not selected:
        raise ConfigError(f"{context.run / file}: none of its questions is in the recipe's data")
    return selected


def dev_questions(recipe: Recipe, trained: Sequence[Question]) -> Sequence[Question]:
    """Returns the questions of the split `dev` that are answered now and then.

    Raises:
        ConfigError: If some of them are trained on.
    """
    evaluation = recipe.evaluation.model_copy(update={"split": "dev", "set": None, "mix": ()})
    settings = data_settings(recipe.model_copy(update={"evaluation": evaluation}), _DEV_QUESTIONS)
    dev = load_data(settings, recipe.seed, unfit=protocol_of(recipe.agent).unfit).questions
    if shared := repeated_questions(dev, trained):
        raise ConfigError(
            f"training.grpo.eval_every: {len(shared)} of {len(dev)} questions of the split `dev` "
            f"are trained on, such as {shared[0].question!r}. Set data.split: train, or "
            "eval_every: 0"
        )
    return dev


def canary_prompts(recipe: Recipe, questions: Sequence[Question]) -> list[tuple[Message, ...]]:
    """Returns the first prompts of some questions, without a search."""
    protocol = protocol_of(recipe.agent)
    roots = [root_of(question, protocol) for question in questions[:_CANARY_PROMPTS]]
    return [protocol.messages(root, last=False) for root in roots]
