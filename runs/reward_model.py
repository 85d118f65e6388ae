"""The reward model that a recipe asks."""

from pathlib import Path

from rewards.reward_model import RewardModel, read_record
from rewards.settings import EvoRagSettings
from runs.recipe import Recipe
from storage.errors import ConfigError
from weights.embedding import Say, base_of

UNTAUGHT = "untaught"
"""Key of the totals that says why no model was made, where there was nothing to learn."""


def encoder_of(recipe: Recipe) -> str:
    """What reads the steps: the recipe's encoder, or the base of its policy.

    Raises:
        ConfigError: the policy's weights are not on this machine, and no encoder is named.
    """
    named = recipe.training.reward_model.encoder
    if named is not None:
        return named
    try:
        return base_of(recipe.policy.trainable)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or say what is to read the steps: training.reward_model.encoder"
        ) from error


def other_total(recipe: Recipe) -> str | None:
    """What to know of a model whose heads learned a total: its weights stay as they were then.

    Null where the recipe asks no such model, or weighs as it did when the model was trained.
    """
    if recipe.asked_reward_model is None or recipe.evo_rag is None:
        return None
    record = read_record(Path(recipe.asked_reward_model))
    learned = record["settings"]
    if learned["heads"] == "multi" and learned["labels"] == "component":
        return None
    then = EvoRagSettings.model_validate(record["evo_rag"] | {"horizon": record["horizon"]})
    now = recipe.evo_rag.model_copy(update={"horizon": _horizon(recipe.evo_rag, recipe)})
    others = [
        name for name in EvoRagSettings.model_fields if getattr(then, name) != getattr(now, name)
    ]
    if not others:
        return None
    return (
        f"reward model {recipe.asked_reward_model}: it learned the total of other rewards, and "
        f"orders by that, whatever evo_rag says now ({', '.join(others)})"
    )


def reward_model_for(recipe: Recipe, say: Say | None = None) -> RewardModel | None:
    """The trained model, under the recipe's schedule; null where neither search nor pairs ask one.

    Raises:
        ConfigError: it, or its encoder, is missing or not what it was.
    """
    if recipe.asked_reward_model is None or recipe.evo_rag is None:
        return None
    horizon = _horizon(recipe.evo_rag, recipe)
    return RewardModel.load(Path(recipe.asked_reward_model), recipe.evo_rag, horizon, say)


def _horizon(settings: EvoRagSettings, recipe: Recipe) -> int:
    """T of p(t) = t / T, in policy calls."""
    return settings.horizon or recipe.agent.max_steps
