"""A run folder: what it is made of, and the promise that it never mixes two runs."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from pipelines.config import Recipe
from storage.atomic import atomic_write_json, atomic_write_text
from storage.errors import ConfigError

MAY_CHANGE = frozenset({"limits", "training", "evaluation"})
"""Blocks that a resumed annotation may set anew; everything else decides what rows mean."""
VERSIONED = (
    "branchwise",
    "openvino-genai",
    "openai",
    "torch",
    "transformers",
    "trl",
    "peft",
    "duckdb",
    "pyarrow",
)


@dataclass(frozen=True)
class Run:
    """A run folder (contracts.md) and the recipe it was made with."""

    folder: Path
    recipe: Recipe

    @property
    def id(self) -> str:
        """Hash of name and recipe, without the blocks that may change."""
        blocks = set(Recipe.model_fields) - MAY_CHANGE
        joined = f"{self.folder.name}:{self.recipe.digest(*sorted(blocks))}"
        return hashlib.blake2b(joined.encode(), digest_size=6).hexdigest()

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite"


def open_run(folder: Path, recipe: Recipe, provenance: Mapping[str, Any]) -> Run:
    """Create the run folder, or continue it if it holds this very run.

    Raises:
        ConfigError: the folder holds another run; every changed setting is named with its old
            and new value.
    """
    run = Run(folder, recipe)
    kept = folder / "config.yaml"
    if kept.exists():
        _refuse_changes(kept, recipe)
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder}: not empty and not a run (no config.yaml); choose another RUN, or remove it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    atomic_write_text(kept, dump_recipe(recipe))
    if not (folder / "provenance.json").exists():
        atomic_write_json(folder / "provenance.json", {**environment_facts(), **provenance})
    return run


def existing_run(folder: Path) -> Run:
    """The run that a folder holds.

    Raises:
        ConfigError: there is none.
    """
    kept = folder / "config.yaml"
    if not kept.exists():
        raise ConfigError(f"{folder}: no run here (no config.yaml); run `make annotate` first")
    return Run(folder, Recipe.model_validate(yaml.safe_load(kept.read_text(encoding="utf-8"))))


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _refuse_changes(kept: Path, recipe: Recipe) -> None:
    old = _flat(yaml.safe_load(kept.read_text(encoding="utf-8")))
    new = _flat(recipe.model_dump(mode="json"))
    changed = [
        f"  {key}: was {old.get(key)!r}, now {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key.split(".")[0] not in MAY_CHANGE
    ]
    if changed:
        raise ConfigError(
            f"{kept.parent} holds a run with other settings; choose another RUN, or undo:\n"
            + "\n".join(changed)
        )


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {at: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat.update(_flat(inner, f"{at}.{key}" if at else str(key)))
    return flat


def environment_facts() -> dict[str, Any]:
    """Versions, git revision, processor and threads: what a number depends on."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "cpu_flags": _cpu_flags(),
        "git_revision": _git_revision(),
        "versions": {name: installed_version(name) for name in VERSIONED},
        "command": sys.argv,
    }


def installed_version(name: str) -> str | None:
    """Version of an installed distribution; null if it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    asked = subprocess.run(
        ["git", "-C", str(repository()), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None


def _cpu_flags() -> list[str]:
    """Instruction sets that decide how fast, and how exactly, a model runs on this CPU."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return []
    flags = next((ln for ln in info.read_text().splitlines() if ln.startswith("flags")), "")
    return sorted(f for f in flags.split() if f.startswith(("avx", "amx", "fma")))


def repository() -> Path:
    """The folder that holds the rooms, `configs/`, `datasets/` and `models/`."""
    return Path(__file__).resolve().parent.parent
