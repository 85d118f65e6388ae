"""What a relabelling was made with, kept beside it as `relabelled/<label>/labelling.yaml`.

Fresh rollouts are worth what the labels' own rewards make of them; another α would compare a label
with something that it never claimed.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipelines.growing import LABELLING
from pipelines.recipe import Recipe
from pipelines.run import Run
from storage.atomic import atomic_write_text
from storage.errors import ConfigError

DIGEST = "digest"
"""Key of the hash of what else is noted."""


def labelled_by(run: Run, recipe: Recipe, blocks: Collection[str] = LABELLING) -> Recipe:
    """The run's recipe with what decides labels taken from another one.

    A verifier is the run's own, whose verdicts the trees keep. One of null lets the gold documents
    say in its place; any other would have to be asked.

    Args:
        run: whose trees are labelled.
        recipe: with the wanted settings.
        blocks: those that are taken.
    """
    taken: dict[str, Any] = {block: getattr(recipe, block) for block in blocks}
    if recipe.verifier is None:
        taken["verifier"] = None
    return run.recipe.model_copy(update=taken)


def keep_labelling(run: Run, label: str, recipe: Recipe) -> None:
    """Note the blocks of `recipe` that decide labels and pairs."""
    blocks = recipe.model_dump(mode="json", include=set(LABELLING))
    blocks[DIGEST] = recipe.digest(*LABELLING)
    path = _path(run, label)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, yaml.safe_dump(blocks, sort_keys=False, allow_unicode=True))


def labelling_of(run: Run, label: str | None) -> Recipe:
    """The run's recipe as its labels were made; null: those of `annotate`.

    Raises:
        ConfigError: what was noted of the relabelling is not there, cannot be read, or was changed
            afterwards.
    """
    if label is None:
        return run.recipe
    path = _path(run, label)
    try:
        noted: Any = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        digest = noted.pop(DIGEST, None)
        recipe = Recipe.model_validate(run.recipe.model_dump(mode="json") | noted)
    except (OSError, ValueError, TypeError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path}: cannot be read as the settings of a relabelling ({error}); make it again "
            f"with `branchwise relabel --label {label}` and its settings, which asks no model"
        ) from error
    if digest != recipe.digest(*LABELLING):
        raise ConfigError(
            f"{path}: was changed after the relabelling was made: restore it, or make it again "
            f"with `branchwise relabel --label {label}` and its settings, which asks no model"
        )
    return recipe


def _path(run: Run, label: str) -> Path:
    return run.folder / "relabelled" / label / "labelling.yaml"
