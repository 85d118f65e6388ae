"""Reads input files, plain or compressed, and reports all their errors together."""

import gzip
from pathlib import Path
from typing import TextIO

from storage.errors import ConfigError
from storage.terminal_escape import inert


class Faults:
    """What is wrong with the input: collected, then raised at once."""

    shown = 20

    def __init__(self) -> None:
        self._messages: list[str] = []
        self.count = 0

    def add(self, place: str, what: str) -> None:
        """Notes that `what` is wrong at `place`."""
        self.count += 1
        if self.count <= self.shown:
            self._messages.append(inert(f"{place}: {what}"))

    def raise_any(self) -> None:
        """Raises what was noted, if anything was.

        Raises:
            ConfigError: the first 20 faults, one per line, and how many more there are.
        """
        if not self.count:
            return
        more = self.count - len(self._messages)
        lines = [*self._messages, *([f"… and {more} more"] if more else [])]
        raise ConfigError("\n".join(lines))


def open_text(path: Path, errors: str = "strict") -> TextIO:
    """Opens text (UTF-8, a byte-order mark is dropped), unpacking `.gz`.

    `errors` says what becomes of bytes that are not UTF-8, as it does for `open`.
    """
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors=errors, newline="")
    return path.open(encoding="utf-8-sig", errors=errors, newline="")
