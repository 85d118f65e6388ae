"""Checks whether a recipe can be used for a curriculum, before anything is paid for."""

from collections.abc import Iterator
from typing import Any

from base.errors import ConfigError
from rewards.schemes import naming
from runs.annotation.reward_model import encoder_of
from runs.factories import open_data
from runs.folder import check_run_folder, check_unchanged
from runs.preflight import cannot_serve_trained_reason, require, require_matplotlib, weights
from runs.recipe import Recipe
from runs.recipe_file import load_recipe
from runs.record import flat
from runs.stage import StageContext
from runs.studies.study_runner import MEMORY_SETTINGS
from weights.policy_files import policy_files

FITS = (
    *MEMORY_SETTINGS,
    "training.dpo.max_length",
    "training.max_dropped_share",
    "training.reward_model.max_length",
)
"""Settings that let a training resume after it ran out of memory or prompt length."""

FOLDER = "curriculum"
"""Subfolder of the run: journal, tables, recipe and start of the curriculum."""
BEGUN = "begun.yaml"
"""File with the recipe at the start; `config.yaml` has the one of the last stage."""

MAY_CHANGE = ("limits.", "curriculum.cycles.refinement", *FITS)
"""Settings that may change when a curriculum resumes. Finished cycles stay valid."""


def check_curriculum(context: StageContext) -> None:
    """Runs all checks of a curriculum.

    Raises:
        ConfigError: If the recipe is not a curriculum's, the run folder holds another one, or there
            are too few questions.
    """
    recipe = context.recipe
    check_run_folder(context.run)
    if faults := list(_faults(recipe)):
        raise ConfigError("\n".join(faults))
    require_matplotlib()
    begun = context.run / FOLDER / BEGUN
    if begun.exists():
        check_unchanged(context.run, _fixed_settings(load_recipe(begun)), _fixed_settings(recipe))
    # Each cycle scores pairs with its own reward model, not that of the recipe.
    by_label = recipe.pairs.model_copy(update={"score": "labels"})
    require(weights(recipe.model_copy(update={"pairs": by_label})))
    if recipe.curriculum.reward_model:
        policy_files(encoder_of(recipe))
    cycles, each = planned(recipe), questions_of(recipe)
    all_of_them = recipe.data.model_copy(update={"limit": cycles * each})
    available = len(open_data(recipe, all_of_them).questions)
    if available < cycles * each:
        raise ConfigError(
            f"curriculum: {cycles} cycles need {each} questions each, but there are {available}: "
            "lower curriculum.questions or curriculum.cycles"
        )


def planned(recipe: Recipe) -> int:
    """Returns the largest number of cycles of both stages together."""
    return recipe.curriculum.cycles.discovery + recipe.curriculum.cycles.refinement


def questions_of(recipe: Recipe) -> int:
    """Returns the number of questions per cycle; 0 if no setting gives it."""
    return recipe.curriculum.questions or recipe.data.limit or 0


def _faults(recipe: Recipe) -> Iterator[str]:
    scheme = recipe.scheme
    if not scheme.stages:
        yield (
            f"curriculum: the reward scheme `{recipe.rewards.scheme}` does not have stages; set "
            f"rewards.scheme: {naming(lambda scheme: bool(scheme.stages))}"
        )
    elif not any(scheme.weights(0).values()):
        yield (
            "curriculum: all reward weights are 0, so there would be no pairs to train on: choose "
            "another rewards.schedule"
        )
    if recipe.pairs.score == "reward_model" and not recipe.curriculum.reward_model:
        yield (
            "pairs.score is `reward_model`, which each cycle must train, but "
            "curriculum.reward_model is false: set it to true, or pairs.score to labels"
        )
    if fault := cannot_serve_trained_reason(recipe.policy):
        yield fault
    if not questions_of(recipe):
        yield (
            "curriculum.questions and data.limit are not set, so the first cycle would use all "
            "questions: set curriculum.questions"
        )
    for settings in recipe.data.mix or (recipe.data,):
        if settings.split not in {"train", "warm"}:
            yield (
                f"data.split of {settings.source} is {settings.split or 'not set'}, so cycles "
                "could train on questions of dev or test: set it to train"
            )


def _fixed_settings(recipe: Recipe) -> dict[str, Any]:
    settings = flat(recipe.model_dump(mode="json"))
    return {name: value for name, value in settings.items() if not name.startswith(MAY_CHANGE)}
