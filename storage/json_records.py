"""Large JSON files, record by record: one list of objects, or JSONL (told apart by themselves)."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from storage.plain_json import whole_number
from storage.reading import Faults, open_text
from storage.text import storable_values

_CHUNK_CHARS = 1 << 16
_LONGEST_ESCAPE = 12  # an escaped character outside the basic plane, \uXXXX\uXXXX


def read_json_records(path: Path, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and content of each record, read as they are asked for (`.gz` too).

    What cannot be read becomes a fault, with file and record number: a broken line of JSONL is
    skipped, a broken list ends there. Lone surrogates become U+FFFD (no table can hold them).
    """
    try:
        with open_text(path) as file:
            yield from _records(path, _Text(file), faults)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        faults.add(str(path), f"cannot be read as UTF-8 JSON ({error})")


def _records(path: Path, text: "_Text", faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list, or those that follow one another with white space between."""
    listed = text.next_char() == "["
    if listed:
        text.skip()
    number = 0
    while (char := text.next_char()) and char != "]":
        number += 1
        try:
            value = text.listed_value() if listed else text.value()
        except ValueError as error:
            faults.add(f"{path}: record {number}", f"is not valid JSON ({error})")
            if listed or not text.skip_line():
                return
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            faults.add(f"{path}: record {number}", "is no JSON object")
    if problem := text.bad_end(listed):
        faults.add(f"{path}: after record {number}", problem)


class _Text:
    """A file's text from where reading stands; only the record at hand is in memory."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._buffer = ""
        self._ended = False
        self._decoder = json.JSONDecoder(parse_int=whole_number)

    def next_char(self) -> str:
        """The next character that is no white space, without taking it; "" at the end."""
        self._buffer = self._buffer.lstrip()
        while not self._buffer and not self._ended:
            self._more()
            self._buffer = self._buffer.lstrip()
        return self._buffer[:1]

    def skip(self) -> None:
        """Take the character that `next_char` showed."""
        self._buffer = self._buffer[1:]

    def value(self) -> Any:
        """Take one JSON value.

        Raises:
            ValueError: there is none.
        """
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer)
                value = storable_values(value)
            except json.JSONDecodeError as error:
                if self._ended or not self._cut(error):
                    raise
                self._more()
            except RecursionError as error:
                raise ValueError("nested too deeply") from error
            else:
                self._buffer = self._buffer[end:]
                return value

    def listed_value(self) -> Any:
        """Take one value of a list, and the comma behind it.

        Raises:
            ValueError: there is none, or no comma where one belongs.
        """
        value = self.value()
        if self.next_char() == ",":
            self.skip()
            if self.next_char() == "]":
                raise ValueError("a comma with nothing behind it")
        elif self.next_char() not in ("]", ""):
            raise ValueError("no comma behind it")
        return value

    def skip_line(self) -> bool:
        """Leave the rest of the line; whether an object begins behind it."""
        while "\n" not in self._buffer and not self._ended:
            self._more()
        self._buffer = self._buffer.partition("\n")[2]
        return self.next_char() == "{"

    def bad_end(self, listed: bool) -> str | None:
        """What is wrong with the file's end, where values have ended; null if nothing is."""
        closed = self.next_char() == "]"
        if listed != closed:
            return (
                "the list is not closed (a torn file?)"
                if listed
                else "a list ends that never began"
            )
        self.skip()
        return "text behind the end of the list" if listed and self.next_char() else None

    def _cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more text may mend the error, as opposed to text that is wrong for good."""
        near_end = error.pos >= len(self._buffer) - _LONGEST_ESCAPE
        return near_end or error.msg.startswith("Unterminated string")

    def _more(self) -> None:
        # At least doubled, so that a record of many chunks is not parsed once a chunk.
        chunk = self._file.read(max(_CHUNK_CHARS, len(self._buffer)))
        self._ended = not chunk
        self._buffer += chunk
