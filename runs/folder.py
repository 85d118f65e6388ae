"""A run folder: its files, and the checks that keep two runs from mixing."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from base.atomic import atomic_write_json, atomic_write_text, is_temporary, make_folder
from base.errors import ConfigError
from base.lock import RunLock, lock_path
from base.plain_json import object_inside
from base.plain_yaml import parse_settings
from base.safe_files import read_inside
from base.settings import describe_errors
from base.terminal_escape import inert_yaml
from runs.environment import environment_facts
from runs.recipe import Recipe, identity_settings
from runs.recipe_file import RECIPE_BYTES
from runs.seal import (
    CONFIG,
    LEDGER,
    PROVENANCE,
    SEAL,
    Seal,
    checked_seal,
    diff_settings,
    flat,
    new_seal,
    with_defaults,
)
from storage.ledger import Ledger
from storage.manifest import PartInfo, add_parts
from storage.parts import write_part
from storage.records import Record
from storage.schemas import rows_to_table, schema_of

STUDY = "study"
"""Subfolder with a study's journal; it exists before the run's recipe."""
INPUTS = "inputs"
"""Key of `provenance.json` with the digests of a run's inputs."""


@dataclass(frozen=True)
class Run:
    """A run folder (docs/durability.md).

    Attributes:
        recipe: Recipe of the current stage; an evaluation may use other settings than the run.
    """

    folder: Path
    recipe: Recipe
    seal: Seal

    @property
    def id(self) -> str:
        """`run_id` of its rows."""
        return self.seal.run_id

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER

    def held(self) -> RunLock:
        """Returns the run's lock, for a `with` block; an open ledger holds it too.

        Raises:
            ConfigError: If another process holds the run; the message gives its pid.
        """
        return _held(self.folder)

    def open_ledger(self) -> Ledger:
        """Returns the run's ledger, for a `with` block.

        Raises:
            ConfigError: If another process holds the run.
            StorageError: See `Ledger`.
        """
        return Ledger(self.ledger)

    def write_part(self, table: str, rows: Iterable[Record], part: int | None = None) -> PartInfo:
        """Writes records as a part of a table, which counts once it is committed.

        Raises:
            StorageError: If the file could not be written, or a value does not fit its column.
        """
        content = rows_to_table(rows, schema_of(table), self.id)
        return write_part(self.folder, table, content, part)

    def commit(self, parts: Iterable[PartInfo], replaced: Collection[str] = ()) -> None:
        """Adds all parts to the manifest, or none; the caller holds the run.

        Args:
            replaced: Names of tables whose older parts are dropped.
        """
        add_parts(self.folder, parts, replaced)


def open_run(
    folder: Path,
    recipe: Recipe,
    facts: Mapping[str, Any],
    inputs: Mapping[str, str] | None = None,
    grown: Collection[str] = (),
) -> Run:
    """Creates the run folder, or resumes it if it holds this run.

    Args:
        facts: Facts to add to `provenance.json`, unless it has them.
        inputs: Digests of the inputs of the rows (see `runs.inputs`), noted at the first attempt.
            None for a stage without rows.
        grown: Names of inputs that may have changed because new entries were added to the old ones.

    Raises:
        ConfigError: If the folder cannot be used, another process holds it, or it holds another
            run. The message gives every changed setting and input with its old and new value.
        StorageError: If the file system refused.
    """
    _check_usable(folder)
    make_folder(folder)
    with _held(folder):
        kept = _kept(folder)
        if kept is None:
            seal = _begin(folder, recipe, {**facts, INPUTS: dict(inputs or {})})
        else:
            seal = _continue(folder, recipe, kept, facts, inputs or {}, grown)
        make_folder(folder / "logs")
    return Run(folder, recipe, seal)


def _held(folder: Path) -> RunLock:
    return RunLock(lock_path(folder / LEDGER))


def _begin(folder: Path, recipe: Recipe, facts: Mapping[str, Any]) -> Seal:
    """Writes the files of a new run, the recipe last, because it makes the folder a run."""
    _reject_foreign(folder)
    seal = new_seal(folder, recipe)
    noted = {**environment_facts(), **facts, SEAL: seal.model_dump()}
    atomic_write_json(folder / PROVENANCE, noted)
    atomic_write_text(folder / CONFIG, dump_recipe(recipe))
    return seal


def _continue(
    folder: Path,
    recipe: Recipe,
    kept: Mapping[str, Any],
    facts: Mapping[str, Any],
    inputs: Mapping[str, str],
    grown: Collection[str],
) -> Seal:
    """Resumes a run if recipe and inputs are unchanged."""
    seal = _sealed(folder, kept, recipe)
    check_same_inputs(folder, {name: inputs[name] for name in inputs if name not in grown})
    atomic_write_text(folder / CONFIG, dump_recipe(recipe))
    _note(folder, facts, inputs, grown)
    return seal


def _note(
    folder: Path, facts: Mapping[str, Any], inputs: Mapping[str, str], grown: Collection[str]
) -> None:
    """Completes `provenance.json`; entries of the first attempt stay.

    Exceptions are grown inputs and the facts about them, which are replaced.
    """
    noted = _provenance(folder)
    begun = (noted.get(INPUTS) or dict(inputs)) | {name: inputs[name] for name in grown}
    if grown:
        noted = {name: value for name, value in noted.items() if name not in facts}
    new = {**facts, **noted, INPUTS: begun}
    if new != noted:
        atomic_write_json(folder / PROVENANCE, new)


def check_same_inputs(folder: Path, inputs: Mapping[str, str]) -> None:
    """Checks that the inputs equal the run's noted ones; file names may differ (see `runs.inputs`).

    A run without noted inputs (only evaluated so far) passes.

    Raises:
        ConfigError: If some have changed since the run was started; each is named.
    """
    noted = noted_inputs(folder)
    if noted:
        check_unchanged(folder, {name: noted.get(name) for name in inputs}, inputs)


def noted_inputs(folder: Path) -> dict[str, str]:
    """Returns the digests of the inputs that the run was started with; empty if none are noted."""
    return dict(_provenance(folder).get(INPUTS) or {})


def existing_run(folder: Path) -> Run:
    """Returns the run in a folder.

    Raises:
        ConfigError: If the folder does not hold a run, or its recipe cannot be read or was edited.
    """
    kept = _kept(folder)
    if kept is None:
        raise ConfigError(f"{folder}: no run here (no config.yaml); run `make annotate` first")
    recipe = _recipe_in(folder, kept)
    return Run(folder, recipe, checked_seal(folder, _provenance(folder), kept))


def open_or_begin(folder: Path, recipe: Recipe, facts: Mapping[str, Any]) -> Run:
    """Returns the run in a folder with this stage's recipe; begins one if there is none.

    The run may have been started with other settings, which its rows then have.

    Raises:
        ConfigError: If the run's recipe was edited, or the folder cannot be used.
    """
    kept = _kept(folder)
    if kept is None:
        return open_run(folder, recipe, facts)
    return Run(folder, recipe, checked_seal(folder, _provenance(folder), kept))


def _recipe_in(folder: Path, kept: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(kept)
    except ValidationError as error:
        raise _unreadable(folder, describe_errors(error)) from error


def _kept(folder: Path) -> dict[str, Any] | None:
    """Reads `config.yaml`, of any version; returns None if it is missing."""
    try:
        text = read_inside(folder, CONFIG, RECIPE_BYTES).decode("utf-8")
        return parse_settings(text, CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, ConfigError) as error:
        raise _unreadable(folder, str(error)) from error


def _unreadable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{folder / CONFIG}: cannot be read as the recipe of a run ({reason}): restore the "
        "file, use the version of Branchwise that wrote it, or give another --run folder"
    )


def dump_recipe(recipe: Recipe) -> str:
    """Returns the resolved recipe as YAML."""
    return inert_yaml(recipe.model_dump(mode="json"))


def check_run_folder(folder: Path, recipe: Recipe | None = None) -> None:
    """Checks a run folder without writing to it.

    Args:
        recipe: Recipe of a stage that will open the run with `open_run`.

    Raises:
        ConfigError: If it is a file or in one, is not writable, holds other files than a run, or
            holds a run that cannot be read, whose recipe was edited, or that was started with
            other settings than the recipe's.
    """
    if not _check_usable(folder):
        return
    kept = _kept(folder)
    if kept is None:
        _reject_foreign(folder)
    else:
        _sealed(folder, kept, recipe)


def _check_usable(folder: Path) -> bool:
    """Rejects a folder that cannot be read and written; returns whether it exists."""
    there = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    if not there.is_dir():
        raise ConfigError(f"{folder}: {there} is a file, not a folder; give another --run folder")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"{folder}: no permission to read and write {there}; fix it, or give another --run "
            "folder"
        )
    return there == folder


def _sealed(folder: Path, kept: Mapping[str, Any], recipe: Recipe | None) -> Seal:
    _recipe_in(folder, identity_settings(kept))
    seal = checked_seal(folder, _provenance(folder), kept)
    if recipe is not None:
        wanted = identity_settings(recipe.model_dump(mode="json"))
        check_unchanged(folder, flat(with_defaults(seal.settings)), flat(wanted))
    return seal


def _reject_foreign(folder: Path) -> None:
    ours = {lock_path(folder / LEDGER), folder / STUDY}
    if SEAL in _provenance(folder):  # a first attempt was killed before it wrote the recipe
        ours.add(folder / PROVENANCE)
    if any(path not in ours and not is_temporary(path) for path in folder.iterdir()):
        raise ConfigError(
            f"{folder}: not empty and not a run (no config.yaml); choose another RUN, or remove it"
        )


def check_unchanged(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Rejects changed settings.

    Raises:
        ConfigError: If some differ; the message gives each with its old and new value.
    """
    if changed := diff_settings(old, new):
        raise ConfigError(
            f"{folder} holds a run with other settings or inputs, and rows must not be mixed: "
            "give a new --run folder, or restore these:\n" + "\n".join(changed)
        )


def _provenance(folder: Path) -> dict[str, Any]:
    """Reads `provenance.json`; empty if it is missing."""
    try:
        noted = object_inside(folder, PROVENANCE)
        inputs = noted.get(INPUTS, {})
        if not isinstance(inputs, dict) or not all(isinstance(x, str) for x in inputs.values()):
            raise ValueError(f"its `{INPUTS}` are not digests")
        return noted
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / PROVENANCE}: cannot be read ({error}), so the inputs of the run are "
            "unknown; restore it"
        ) from error
