"""The journal of a study: every command with its start, its end, its totals and its output.

Each event is one JSON line, appended and synced. So no attempt goes missing, and tables can list
runs that were not chosen. A command with a noted end is not repeated while its output is unchanged:
a user may delete it, or another command may overwrite it.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from branchwise.base import LOG_BYTES, StorageError, digest_of, read_inside
from branchwise.storage import load_manifest, problem_of
from branchwise.weights import TRAINING_RECORD


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the journal.

    Attributes:
        key: Hash of the command and its recipe (see `command_key`).
        at: UTC, ISO 8601.
        seconds: Duration of the command; 0 at its start.
        cpu_seconds: CPU time of its process and of the ones that it waited for.
        totals: JSON line of the stage, and a digest of its output.
    """

    key: str
    command: str
    event: Literal["started", "done", "failed"]
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    exit_code: int | None = None
    totals: Mapping[str, Any] = field(default_factory=dict)


_EVENTS = TypeAdapter(Event)


@dataclass(frozen=True)
class Journal:
    """The journal file; a resumed study reads it first."""

    path: Path

    def note(self, event: Event) -> None:
        """Appends an event; it is on the disk when this returns.

        Raises:
            StorageError: If the file system refused.
        """
        # ASCII, so that a torn line can be decoded and an event never contains a line separator.
        line = json.dumps(asdict(event), default=str) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("\n" if torn else "") + line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot write the journal: {error.strerror}"
            ) from error

    def events(self) -> Iterator[Event]:
        """Yields all events in order; skips a line torn by a kill."""
        try:
            text = read_inside(self.path.parent, self.path.name, LOG_BYTES).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        for line in text.splitlines():
            with suppress(ValueError):  # includes pydantic's ValidationError
                yield _EVENTS.validate_json(line)

    def done(self, key: str) -> Mapping[str, Any] | None:
        """Returns the totals of a finished command; None if it has not finished."""
        ended = [event for event in self.events() if event.key == key and event.event == "done"]
        return ended[-1].totals if ended else None

    def by_command(self) -> list[list[Event]]:
        """Returns the events of every command, in the order of their first start."""
        by_key = defaultdict[str, list[Event]](list)
        for event in self.events():
            by_key[event.key].append(event)
        return list(by_key.values())


def command_key(arguments: tuple[str, ...], recipe_digest: str) -> str:
    """Returns the identity of a command: its words and its recipe."""
    return digest_of(recipe_digest, *arguments)


OUTPUT = "output"
"""Key of a stage's totals under which the study keeps the digest."""

WEIGHTS = ("adapter/*", "heads.safetensors")
"""Patterns of weight files in the model folder of a policy, and of a reward model."""


def artifact_digest(stage: str, run: Path, totals: Mapping[str, Any]) -> str | None:
    """Returns the digest of a finished stage's output.

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
    by_table = [*map(load_manifest(run).of, tables)]
    parts = [part for parts in by_table for part in parts]
    if not all(by_table) or any(problem_of(run, part) for part in parts):
        return None
    return digest_of(*(part.sha256 for part in parts))


def _of_model(model: Path) -> str | None:
    digests = []
    trained = [path for pattern in WEIGHTS for path in model.glob(pattern)]
    # Without an adapter, the model's own weights were trained; with one, they are an export.
    for path in sorted(trained or model.glob("model*.safetensors")):
        with path.open("rb") as file:
            digests += [path.name, hashlib.file_digest(file, "sha256").hexdigest()]
    is_whole = digests and (model / TRAINING_RECORD).is_file()
    return digest_of(*digests) if is_whole else None
