"""The settings of a relabelling, stored as `relabelled/<label>/labelling.yaml`.

Fresh rollouts must be scored with the settings of the labels; under another α they would not be
comparable.
"""

from collections.abc import Collection
from typing import Any

from base.atomic import atomic_write_text
from base.errors import ConfigError
from base.plain_yaml import parse_settings
from base.safe_files import read_inside
from base.terminal_escape import inert_yaml
from runs.annotation.tree_growing import LABELLING
from runs.folder import Run
from runs.recipe import Recipe
from runs.recipe_file import RECIPE_BYTES

LABELS = "labelling.yaml"

DIGEST = "digest"
"""Key of the hash over the other entries."""


def with_label_settings(run: Run, recipe: Recipe, blocks: Collection[str] = LABELLING) -> Recipe:
    """Returns the run's recipe with the label settings of another one.

    The verifier stays the run's own, because the trees store its verdicts. If the other recipe has
    no verifier, the gold documents decide.

    Args:
        run: Run of the trees.
        recipe: Recipe with the wanted settings.
        blocks: Recipe blocks to take.

    Raises:
        ConfigError: If the scheme cannot label such trees.
    """
    taken: dict[str, Any] = {block: getattr(recipe, block) for block in blocks}
    if recipe.verifier is None:
        taken["verifier"] = None
    found = run.recipe.model_copy(update=taken)
    if problems := list(found.scheme.problems()):
        raise ConfigError("\n".join(problems))
    return found


def keep_labelling(run: Run, label: str, recipe: Recipe) -> None:
    """Stores the blocks of `recipe` that decide labels and pairs."""
    blocks = recipe.model_dump(mode="json", include=set(LABELLING))
    blocks[DIGEST] = recipe.digest(*LABELLING)
    atomic_write_text(run.folder / _name(label), inert_yaml(blocks))


def labelling_of(run: Run, label: str | None) -> Recipe:
    """Returns the recipe of a relabelling; for label None, the run's own.

    Raises:
        ConfigError: If the file of the relabelling's settings is missing, cannot be read, or was
            changed afterwards.
    """
    if label is None:
        return run.recipe
    try:
        text = read_inside(run.folder, _name(label), RECIPE_BYTES).decode("utf-8")
        noted = parse_settings(text, LABELS)
        digest = noted.pop(DIGEST, None)
        recipe = Recipe.model_validate(run.recipe.model_dump(mode="json") | noted)
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{run.folder / _name(label)}: cannot be read as the settings of a relabelling "
            f"({error}); rerun `branchwise relabel --label {label}` with its settings, which calls "
            "no model"
        ) from error
    if digest != recipe.digest(*LABELLING):
        raise ConfigError(
            f"{run.folder / _name(label)}: was changed after the relabelling was made: restore it, "
            f"or rerun `branchwise relabel --label {label}` with its settings, which calls no model"
        )
    return recipe


def _name(label: str) -> str:
    """Returns the path of a relabelling's settings, relative to the run folder."""
    return f"relabelled/{label}/{LABELS}"
