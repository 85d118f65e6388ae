"""Detects edits to a run's recipe after the run has started.

`provenance.json` keeps the seal: the run's id, a random token, and the settings that define its
rows. `manifest.json` and `ledger.sqlite` keep the seal's digest. A stage that opens the run
compares the three files with each other, and the settings with `config.yaml`.

    provenance.json  {"seal": {run_id, token, settings, digest}}   written first
    manifest.json    {"run": digest}                               second, without parts
    config.yaml      the settings                                  last: the folder is now a run
    ledger.sqlite    facts: `begun` = digest                       before the first call

So a kill in between leaves a folder without a `config.yaml`, which the next attempt overwrites.
A missing or empty manifest or ledger is sealed when it is next written. One with rows is rejected
if its seal is missing or is another run's.
"""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from base.errors import ConfigError
from base.text import digest_of
from runs.recipe import Recipe, identity_settings
from runs.settings_diff import diff_settings, flat
from storage.manifest import MANIFEST, load_manifest
from storage.run_digest import UNSEALED, begun_of_ledger

SEAL = "seal"
"""Key of the seal in `provenance.json`."""
CONFIG, PROVENANCE, LEDGER = "config.yaml", "provenance.json", "ledger.sqlite"
"""Names of a run's files."""


class Seal(BaseModel):
    """Identity and settings from the start of a run.

    Attributes:
        run_id: Id on every row of the run; it stays if the folder is renamed.
        token: Random text, so that no two runs have the same digest.
        settings: Settings that define the run's identity (`runs.recipe.identity_settings`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    token: str
    settings: dict[str, Any]

    @property
    def digest(self) -> str:
        """Hash of the seal (24 hex digits)."""
        return digest_of(json.dumps(self.model_dump(), sort_keys=True))

    def noted(self) -> dict[str, Any]:
        """Returns the seal in the form kept in `provenance.json`."""
        return {**self.model_dump(), "digest": self.digest}


def new_seal(folder: Path, recipe: Recipe) -> Seal:
    """Returns the seal of a new run; its id is a hash of the folder's name and the recipe."""
    joined = f"{folder.name}:{recipe.decisive_digest}"
    return Seal(
        run_id=hashlib.blake2b(joined.encode(), digest_size=6).hexdigest(),
        token=secrets.token_hex(8),
        settings=identity_settings(recipe.model_dump(mode="json")),
    )


def checked_seal(folder: Path, noted: Mapping[str, Any], kept: Mapping[str, Any]) -> Seal:
    """Returns the seal of a run after checking that its files belong together.

    Args:
        folder: Run folder.
        noted: Content of its `provenance.json`.
        kept: Content of its `config.yaml`.

    Raises:
        ConfigError: If a file is missing, was changed, or is another run's, or if the recipe was
            changed after the start. The message gives every changed setting with both values.
        StorageError: If the manifest cannot be read.
    """
    seal = _seal_in(folder, noted)
    _reject_unknown(folder, seal)
    _check_unedited(folder, seal, kept)
    return seal


def _seal_in(folder: Path, noted: Mapping[str, Any]) -> Seal:
    path, found = folder / PROVENANCE, noted.get(SEAL)
    if found is None:
        raise ConfigError(
            f"{path}: {'does not say' if noted else 'is missing, so nothing says'} what the run "
            f"was started with. {_REMEDY}"
        )
    try:
        given = dict(found)
        digest = given.pop("digest", None)
        seal = Seal.model_validate(given)
    except (TypeError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path}: its `{SEAL}` cannot be read. {_REMEDY}") from error
    if seal.digest != digest:
        raise ConfigError(
            f"{path}: its `{SEAL}` was changed after the run started (its content has the digest "
            f"{seal.digest}, but it was sealed as {_of_others(folder) or digest}). {_REMEDY}"
        )
    return seal


def _of_others(folder: Path) -> str | None:
    """Returns the digest in the manifest or the ledger."""
    found = (load_manifest(folder).run, begun_of_ledger(folder / LEDGER))
    return next((digest for digest in found if digest), None)


def _reject_unknown(folder: Path, seal: Seal) -> None:
    manifest = load_manifest(folder)
    sealed = {
        PROVENANCE: seal.digest,
        MANIFEST: manifest.run or (UNSEALED if manifest.parts else None),
        LEDGER: begun_of_ledger(folder / LEDGER),
    }
    given = {name: digest for name, digest in sealed.items() if digest is not None}
    if len(set(given.values())) > 1:
        raise ConfigError(f"{_strangers(folder, given)}. {_REMEDY}")


def check_no_ledger(folder: Path, seal: Seal, begun: str) -> None:
    """Rejects the ledger of another run.

    Raises:
        ConfigError: If the ledger's digest differs from the seal's.
    """
    if begun != seal.digest:
        given = {PROVENANCE: seal.digest, MANIFEST: seal.digest, LEDGER: begun}
        raise ConfigError(f"{_strangers(folder, given)}. {_REMEDY}")


def _strangers(folder: Path, given: Mapping[str, str]) -> str:
    """Describes the files that belong to another run."""
    for name, digest in given.items():
        if digest == UNSEALED:
            return f"{folder / name}: holds rows, but not the seal of this run"
    (most, times), *_ = Counter(given.values()).most_common(1)
    if times == 1:
        told = " and ".join(f"{name} ({digest})" for name, digest in given.items())
        return f"{folder}: {told} belong to different runs"
    name, digest = next((name, digest) for name, digest in given.items() if digest != most)
    return f"{folder / name}: belongs to another run ({digest}; the other files: {most})"


def _check_unedited(folder: Path, seal: Seal, kept: Mapping[str, Any]) -> None:
    begun, now = with_defaults(seal.settings), with_defaults(identity_settings(kept))
    if changed := diff_settings(flat(begun), flat(now)):
        raise ConfigError(
            f"{folder / CONFIG}: was changed after the run was started, and rows must not be "
            "mixed: restore it, or give a new --run folder:\n" + "\n".join(changed)
        )


def with_defaults(kept: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns identity settings with defaults for settings that were added later.

    Settings that do not fit the current ones are returned unchanged, so that they count as a
    change.
    """
    try:
        return identity_settings(Recipe.model_validate(kept).model_dump(mode="json"))
    except ValidationError:
        return kept


_REMEDY = "Restore the file from a copy of the run, or give a new --run folder"
