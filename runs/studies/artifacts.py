"""Digests of a stage's output, to detect that it is missing or has changed.

A stage counts as finished only while its output is unchanged: a user may delete it, or another
command may overwrite it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from base.text import digest_of
from storage.manifest import load_manifest, problem_of

OUTPUT = "output"
"""Key of a stage's totals under which the study keeps the digest."""

WEIGHTS = ("adapter/*", "heads.safetensors")
"""Patterns of weight files in the model folder of a policy, and of a reward model."""


def artifact_digest(stage: str, run: Path, totals: Mapping[str, Any]) -> str | None:
    """Returns the digest of a finished stage's output.

    Args:
        stage: "annotate", "relabel", "train-dpo", …
        run: Run folder.
        totals: Totals of the stage; they name its output.

    Returns:
        "" for a stage without output files and for a dry run; None if output is missing or damaged.

    Raises:
        StorageError: If the run's manifest cannot be read.
    """
    if totals.get("dry_run"):
        return ""
    if "model" in totals:
        return _of_model(Path(str(totals["model"])))
    tables = list(_tables(stage, totals))
    return _of_tables(run, tables) if tables else ""


def _tables(stage: str, totals: Mapping[str, Any]) -> Iterator[str]:
    if stage == "annotate":
        yield from ("questions", "trees", "pairs")
    elif stage == "relabel":
        yield from (f"relabelled/{totals.get('label')}/{kind}" for kind in ("labels", "pairs"))
    elif stage == "eval":
        for row in totals.get("policies", ()):
            folder = f"eval/{row['policy']}/{totals.get('set')}"
            yield from (f"{folder}/predictions", f"{folder}/failures")


def _of_tables(run: Path, tables: list[str]) -> str | None:
    if not run.is_dir():
        return None
    manifest = load_manifest(run)
    by_table = [manifest.of(table) for table in tables]
    parts = [part for own in by_table for part in own]
    if not all(by_table) or any(problem_of(run, part) for part in parts):
        return None
    return digest_of(*(part.sha256 for part in parts))


def _of_model(model: Path) -> str | None:
    digests = []
    for path in sorted(path for weights in WEIGHTS for path in model.glob(weights)):
        with path.open("rb") as file:
            digests += [path.name, hashlib.file_digest(file, "sha256").hexdigest()]
    whole = digests and (model / "training.json").is_file()
    return digest_of(*digests) if whole else None
