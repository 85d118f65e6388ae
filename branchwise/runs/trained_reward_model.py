"""Loads the reward model of a recipe."""

from pathlib import Path

from branchwise.base import ConfigError
from branchwise.modeling import base_of
from branchwise.rewards import RewardModel, read_record

from .recipe import Recipe

NOT_TRAINED = "not_trained"
"""Key in the totals with the reason that no model was trained."""


def encoder_of(recipe: Recipe) -> str:
    """Returns the encoder of the steps: the recipe's, or the base of its policy.

    Raises:
        ConfigError: If the policy's weights are not on this machine, and no encoder is set.
    """
    encoder = recipe.training.reward_model.encoder
    if encoder is not None:
        return encoder
    try:
        return base_of(recipe.policy.trainable)
    except ConfigError as error:
        raise ConfigError(f"{error}; or set training.reward_model.encoder") from error


def outdated_weights_warning(recipe: Recipe) -> str | None:
    """Returns a warning if the model learned a total with other weights.

    None if the weights are the same, or if the recipe does not use such a model.
    """
    if recipe.active_reward_model is None or not recipe.scheme.learnable:
        return None
    record = read_record(Path(recipe.active_reward_model))
    learned = record["settings"]
    if learned["heads"] == "multi" and learned["labels"] == "component":
        return None
    now = recipe.scheme.resolved.model_dump(mode="json")
    changed = [name for name in now if record["rewards"].get(name) != now[name]]
    if not changed:
        return None
    return (
        f"reward model {recipe.active_reward_model}: it learned the total of other rewards and "
        f"orders by it, not by the current `rewards:` (changed: {', '.join(changed)})"
    )


def reward_model_for(recipe: Recipe) -> RewardModel | None:
    """Returns the trained model, under the recipe's schedule; None if the recipe does not use one.

    Raises:
        ConfigError: If it or its encoder is missing or has changed.
    """
    if recipe.active_reward_model is None or not recipe.scheme.learnable:
        return None
    return RewardModel.load(Path(recipe.active_reward_model), recipe.scheme.weights)
