"""A run folder: its files, and the checks that keep two runs from mixing."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, RunLock, did_you_mean, is_temporary, lock_path, make_folder
from branchwise.storage import Ledger, PartInfo, add_parts, rows_to_table, schema_of, write_part
from branchwise.types import Record

from .recipe import Recipe, identity_settings
from .record import (
    LEDGER,
    PROVENANCE,
    RunRecord,
    diff_settings,
    flat,
    read_record,
    recipe_of,
)

STUDY = "study"
"""Subfolder with a study's journal; it exists before the run's record."""


@dataclass(frozen=True)
class Run:
    """A run folder (docs/durability.md).

    Attributes:
        recipe: Recipe of the current stage; an evaluation may use other settings than the run.
        record: What the run was started with.
    """

    folder: Path
    recipe: Recipe
    record: RunRecord

    @property
    def id(self) -> str:
        """`run_id` of its rows."""
        return self.record.run_id

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER

    def held(self) -> RunLock:
        """Returns the run's lock, for a `with` block; an open ledger holds it too.

        Raises:
            ConfigError: If another process holds the run; the message gives its pid.
        """
        return RunLock(lock_path(self.ledger))

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
    *,
    keeps_record: bool = False,
) -> Run:
    """Creates the run folder, or resumes it if it holds this run.

    Args:
        facts: Facts to add to the record, unless it has them.
        inputs: Digests of the inputs of the rows (see `runs.inputs`), noted at the first attempt.
            None for a stage without rows.
        grown: Names of inputs that may have changed because new entries were added to the old ones;
            they and the facts about them are replaced.
        keeps_record: Whether an existing run may have been started with other settings, which its
            rows then keep.

    Raises:
        ConfigError: If the folder cannot be used, another process holds it, or it holds another
            run. The message gives every changed setting and input with its old and new value.
        StorageError: If the file system refused.
    """
    inputs = inputs or {}
    _check_usable(folder)
    if keeps_record and (kept := read_record(folder)) is not None:
        return Run(folder, recipe, kept)
    make_folder(folder)
    with RunLock(lock_path(folder / LEDGER)):
        record = _checked_record(folder, recipe)
        if record is None:
            record = RunRecord.of_new_run(recipe)
        else:
            fixed = {name: inputs[name] for name in inputs if name not in grown}
            check_same_inputs(folder, record, fixed)
        record = record.model_copy(
            update={
                "recipe": recipe.model_dump(mode="json"),
                "inputs": (record.inputs or dict(inputs)) | {name: inputs[name] for name in grown},
                "facts": {**record.facts, **facts} if grown else {**facts, **record.facts},
            }
        )
        record.write(folder)
        make_folder(folder / "logs")
    return Run(folder, recipe, record)


def check_same_inputs(folder: Path, record: RunRecord, inputs: Mapping[str, str]) -> None:
    """Checks that the inputs equal the run's noted ones; file names may differ (see `runs.inputs`).

    A run without noted inputs (only evaluated so far) passes.

    Raises:
        ConfigError: If some have changed since the run was started; each is named.
    """
    if record.inputs:
        check_unchanged(folder, {name: record.inputs.get(name) for name in inputs}, inputs)


def existing_run(folder: Path) -> Run:
    """Returns the run in a folder.

    Raises:
        ConfigError: If the folder does not hold a run, or its record cannot be read or was edited.
    """
    record = read_record(folder)
    if record is None:
        runs = [str(file.parent) for file in folder.parent.glob(f"*/{PROVENANCE}")]
        hint = did_you_mean(str(folder), runs)
        raise ConfigError(
            f"{folder}: no run here (no {PROVENANCE}); run `make annotate` first{hint}"
        )
    return Run(folder, recipe_of(folder, record), record)


def check_run_folder(folder: Path, recipe: Recipe | None = None) -> None:
    """Checks a run folder without writing to it.

    Args:
        recipe: Recipe of a stage that will open the run with `open_run`.

    Raises:
        ConfigError: If it is a file or in one, is not writable, holds other files than a run, or
            holds a run that cannot be read, whose record was edited, or that was started with
            other settings than the recipe's.
    """
    if _check_usable(folder):
        _checked_record(folder, recipe)


def _check_usable(folder: Path) -> bool:
    """Rejects a folder that cannot be read and written; returns whether it exists."""
    existing = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    if not existing.is_dir():
        raise ConfigError(
            f"{folder}: {existing} is a file, not a folder; give another --run folder"
        )
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"{folder}: no permission to read and write {existing}; fix it, or give another --run "
            "folder"
        )
    return existing == folder


def _checked_record(folder: Path, recipe: Recipe | None) -> RunRecord | None:
    """Returns the record if it fits the recipe; None if the folder holds nothing yet."""
    record = read_record(folder)
    if record is None:
        ours = {lock_path(folder / LEDGER), folder / STUDY}
        if any(path not in ours and not is_temporary(path) for path in folder.iterdir()):
            raise ConfigError(
                f"{folder}: not empty and not a run (no {PROVENANCE}); choose another RUN, or "
                "remove it"
            )
        return None
    noted = recipe_of(folder, record)
    if recipe is not None:
        check_unchanged(folder, flat(identity_settings(noted)), flat(identity_settings(recipe)))
    return record


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
