"""The record of a run, `provenance.json`: what it was started with.

It is the only copy that stages read; `config.yaml` repeats the recipe for people. It is the first
file of a run and makes its folder one. It is sealed, so an edit or a flipped bit is noticed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from branchwise.base import (
    ConfigError,
    atomic_write_json,
    atomic_write_text,
    describe_errors,
    digest_of,
    object_inside,
    terminal_safe_yaml,
)

from .environment import environment_facts
from .recipe import Recipe

CONFIG, PROVENANCE, LEDGER = "config.yaml", "provenance.json", "ledger.sqlite"
"""Names of a run's files."""


class RunRecord(BaseModel):
    """Identity, settings and inputs of a run.

    Attributes:
        run_id: Id on every row of the run: a hash of the recipe's name and the other settings that
            identify a run, wherever its folder is.
        recipe: All settings of the stage that last opened the run with its own recipe. Those of
            `runs.recipe.identity_settings` never change.
        inputs: Digests of the inputs of its rows (see `runs.inputs`); empty before the first rows.
        facts: Versions, machine, and counts of the first attempt.
        seal: Hash of all other fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    recipe: dict[str, Any]
    inputs: dict[str, str]
    facts: dict[str, Any]
    seal: str = ""

    @classmethod
    def of_new_run(cls, recipe: Recipe) -> Self:
        """Returns the record of a new run."""
        return cls(
            run_id=recipe.decisive_digest,
            recipe=recipe.model_dump(mode="json"),
            inputs={},
            facts=environment_facts(),
        )

    def write(self, folder: Path) -> None:
        """Writes the record, then the recipe's copy for people.

        Raises:
            StorageError: If a file could not be written.
        """
        sealed = self.model_copy(update={"seal": self._hash()})
        atomic_write_json(folder / PROVENANCE, sealed.model_dump())
        atomic_write_text(folder / CONFIG, terminal_safe_yaml(self.recipe))

    @property
    def broken(self) -> bool:
        """Whether the record differs from the one that was written."""
        return self.seal != self._hash()

    def _hash(self) -> str:
        return digest_of(json.dumps(self.model_dump(exclude={"seal"}), sort_keys=True))


def read_record(folder: Path) -> RunRecord | None:
    """Returns the record of the run in a folder; None if there is none.

    Raises:
        ConfigError: If it cannot be read, or was changed since it was written.
    """
    try:
        record = RunRecord.model_validate(object_inside(folder, PROVENANCE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        raise _unreadable(folder, describe_errors(error)) from error
    except (OSError, ValueError, ConfigError) as error:
        raise _unreadable(folder, str(error)) from error
    if record.broken:
        raise _unreadable(folder, "its content changed since it was written")
    return record


def recipe_of(folder: Path, record: RunRecord) -> Recipe:
    """Returns the recipe of a run's record.

    Raises:
        ConfigError: If it does not fit this version.
    """
    try:
        return Recipe.model_validate(record.recipe)
    except ValidationError as error:
        raise _unreadable(folder, describe_errors(error)) from error


def _unreadable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{folder / PROVENANCE}: cannot be read as the record of a run ({reason}). Restore the "
        "file from a copy of the run, use the version of Branchwise that wrote it, or give another "
        "--run folder"
    )


def dump_recipe(recipe: Recipe) -> str:
    """Returns the resolved recipe as YAML."""
    return terminal_safe_yaml(recipe.model_dump(mode="json"))


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted name."""
    if not isinstance(value, dict) or not value:
        return {at: value}
    flattened: dict[str, Any] = {}
    for key, inner in value.items():
        flattened.update(flat(inner, f"{at}.{key}" if at else str(key)))
    return flattened


def diff_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a line with both values for each name that differs; a missing value is None."""
    return [
        f"  {key}: was {old.get(key)!r}, now {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
