"""The reward model that a recipe asks."""

from pathlib import Path

from engines.embedding import Say
from pipelines.recipe import Recipe
from rewards.reward_model import RewardModel


def reward_model_for(recipe: Recipe, say: Say | None = None) -> RewardModel | None:
    """The trained model, under the recipe's schedule; null where neither search nor pairs ask one.

    Raises:
        ConfigError: it, or its encoder, is missing or not what it was.
    """
    if recipe.asked_reward_model is None or recipe.evo_rag is None:
        return None
    horizon = recipe.evo_rag.horizon or recipe.agent.max_steps
    return RewardModel.load(Path(recipe.asked_reward_model), recipe.evo_rag, horizon, say)
