"""Reports EVO-RAG's reward weights over an episode, as figures and as a plot."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from base.errors import ConfigError
from rewards.evo_rag.schedule import Weights, weights
from rewards.settings import REWARDS, EvoRagSettings
from runs.curriculum.dev import STAGES, StageName
from runs.recipe import Recipe
from runs.studies.plot import svg

ByStage = Mapping[StageName, EvoRagSettings]


def settings_of(recipe: Recipe) -> ByStage:
    """Returns the recipe's reward settings per stage.

    Raises:
        ConfigError: If the reward scheme does not have stages.
    """
    rewards = recipe.rewards
    if not isinstance(rewards, EvoRagSettings):
        raise ConfigError(
            f"rewards.scheme is `{rewards.scheme}`, which does not have a schedule; see "
            "configs/evo-rag.yaml"
        )
    return {stage: rewards.model_copy(update={"stage": stage}) for stage in STAGES}


def episode(recipe: Recipe, settings: EvoRagSettings) -> Iterator[tuple[int, float, Weights]]:
    """Yields t, p(t) and the weights for every policy call of an episode."""
    horizon = settings.horizon or recipe.agent.max_steps
    for t in range(recipe.agent.max_steps):
        yield t, min(t / horizon, 1.0), weights(settings, t / horizon)


def draw_weights(recipe: Recipe, stages: ByStage, path: Path) -> None:
    """Plots the weights over an episode as SVG, one panel per stage."""
    with svg(path, len(stages), 9, 3.6, sharey=True) as panels:
        for axes, (stage, settings) in zip(panels, stages.items(), strict=True):
            calls = list(episode(recipe, settings))
            for name in settings.components or REWARDS:
                axes.plot([t for t, _, _ in calls], [at[name] for _, _, at in calls], label=name)
            axes.set_title(stage.capitalize())
            axes.set_xlabel("policy call t")
        panels[0].set_ylabel("weight")
        lines = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(*lines, loc="outside right center")
