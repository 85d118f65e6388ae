"""The journal of a study: every command with its start, its end and its totals.

Each event is one JSON line, appended and synced. So no attempt goes missing, and tables can list
runs that were not chosen. A command with a noted end is not repeated.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from base.errors import StorageError
from base.safe_files import LOG_BYTES, read_inside
from base.text import digest_of


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the journal.

    Attributes:
        key: Hash of the command and its recipe (see `command_key`).
        command: Command line as a user would type it.
        event: Start or end of the command.
        at: UTC, ISO 8601.
        seconds: Duration of the command; 0 at its start.
        exit_code: Exit code of the stage; None at its start.
        totals: JSON line of the stage, and a digest of its output.
    """

    key: str
    command: str
    event: Literal["started", "done", "failed"]
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    exit_code: int | None = None
    totals: Mapping[str, Any] = field(default_factory=dict)


_EVENTS = TypeAdapter(Event)


@dataclass(frozen=True, slots=True)
class Started:
    """A command of the study with all its attempts."""

    command: str
    attempts: int
    seconds: float
    exit_code: int | None


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

    def started(self) -> list[Started]:
        """Returns all started commands, in the order of their first start."""
        found: dict[str, list[Event]] = {}
        for event in self.events():
            found.setdefault(event.key, []).append(event)
        return [
            Started(
                command=events[0].command,
                attempts=sum(event.event == "started" for event in events),
                seconds=sum(event.seconds for event in events),
                exit_code=events[-1].exit_code,
            )
            for events in found.values()
        ]


def command_key(arguments: tuple[str, ...], recipe_digest: str) -> str:
    """Returns the identity of a command: its words and its recipe."""
    return digest_of(recipe_digest, *arguments)
