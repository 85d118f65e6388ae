"""Extras of pyproject.toml that a recipe needs, in addition to those of its stage."""

import re
from importlib.metadata import requires

from runs.environment import installed_version
from runs.recipe import Recipe


def extras_of(recipe: Recipe) -> tuple[str, ...]:
    """Returns the names of the extras that a recipe needs, as in pyproject.toml."""
    dense = ("dense",) if recipe.retrieval.kind in ("dense", "fusion") else ()
    plots = ("study",) if "train-grpo" in recipe.stages else ()
    return tuple(dict.fromkeys((*dense, *plots, *recipe.scheme.extras)))


def missing_extras(recipe: Recipe) -> tuple[str, ...]:
    """Returns the names of the needed extras of which a package is not installed."""
    packages = requires("branchwise") or []
    return tuple(
        extra
        for extra in extras_of(recipe)
        if any(
            installed_version(re.split(r"[^\w.-]", package)[0]) is None
            for package in packages
            if package.endswith(f'extra == "{extra}"')
        )
    )
