"""Detects edits to a run's recipe after the run has started.

`provenance.json` keeps the run's id and the settings that define its rows. A stage that opens the
run compares them with `config.yaml`. `config.yaml` is written last and makes the folder a run, so a
kill before that leaves a folder that the next attempt overwrites.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from base.errors import ConfigError
from base.settings import describe_errors
from runs.recipe import Recipe, identity_settings

SEAL = "seal"
"""Key of the seal in `provenance.json`."""
CONFIG, PROVENANCE, LEDGER = "config.yaml", "provenance.json", "ledger.sqlite"
"""Names of a run's files."""


class Seal(BaseModel):
    """Identity and settings from the start of a run.

    Attributes:
        run_id: Id on every row of the run; it stays if the folder is renamed.
        settings: Settings that define the run's identity (`runs.recipe.identity_settings`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    settings: dict[str, Any]


def new_seal(folder: Path, recipe: Recipe) -> Seal:
    """Returns the seal of a new run; its id is a hash of the folder's name and the recipe."""
    joined = f"{folder.name}:{recipe.decisive_digest}"
    return Seal(
        run_id=hashlib.blake2b(joined.encode(), digest_size=6).hexdigest(),
        settings=identity_settings(recipe.model_dump(mode="json")),
    )


def checked_seal(folder: Path, noted: Mapping[str, Any], kept: Mapping[str, Any]) -> Seal:
    """Returns the seal of a run whose recipe was not edited.

    Raises:
        ConfigError: If the seal is missing or unreadable, or the recipe was changed after the
            start. The message gives every changed setting with both values.
    """
    try:
        seal = Seal.model_validate(noted.get(SEAL))
    except ValidationError as error:
        raise ConfigError(
            f"{folder / PROVENANCE}: is missing, or does not say what the run was started with "
            f"({describe_errors(error, most=1)}). Restore the file from a copy of the run, or give "
            "a new --run folder"
        ) from error
    begun, now = with_defaults(seal.settings), with_defaults(identity_settings(kept))
    if changed := diff_settings(flat(begun), flat(now)):
        raise ConfigError(
            f"{folder / CONFIG}: was changed after the run was started, and rows must not be "
            "mixed: restore it, or give a new --run folder:\n" + "\n".join(changed)
        )
    return seal


def with_defaults(kept: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns identity settings with defaults for settings that were added later.

    Settings that do not fit the current ones are returned unchanged, so that they count as a
    change.
    """
    try:
        return identity_settings(Recipe.model_validate(kept).model_dump(mode="json"))
    except ValidationError:
        return kept


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted name."""
    if not isinstance(value, dict) or not value:
        return {at: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found.update(flat(inner, f"{at}.{key}" if at else str(key)))
    return found


def diff_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a line with both values for each name that differs; a missing value is None."""
    return [
        f"  {key}: was {old.get(key)!r}, now {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
