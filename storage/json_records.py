"""Large JSON files, record by record: one list of objects, or JSONL (told apart by themselves)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from storage.errors import ConfigError

_CHUNK_CHARS = 1 << 16
_LONGEST_ESCAPE = 12  # an escaped character outside the basic plane, \uXXXX\uXXXX


def read_json_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and content of each record, read as they are asked for.

    Raises:
        ConfigError: the file cannot be read, or a record is torn or no object; with file and
            record number.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, value in enumerate(_values(file, path), start=1):
                if not isinstance(value, dict):
                    raise ConfigError(f"{path}: record {number} is no JSON object")
                yield number, value
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 JSON ({error})") from error


def _values(file: TextIO, path: Path) -> Iterator[Any]:
    """The values of a list, or those that follow one another with white space between."""
    text = _Text(file)
    listed = text.next_char() == "["
    if listed:
        text.skip()
    number = 0
    while (char := text.next_char()) and char != "]":
        number += 1
        try:
            yield text.value()
            if listed and text.next_char() == ",":
                text.skip()
                if text.next_char() == "]":
                    raise ValueError("a comma with nothing behind it")
            elif listed and text.next_char() not in ("]", ""):
                raise ValueError("no comma behind it")
        except ValueError as error:
            raise ConfigError(f"{path}: record {number} is not valid JSON: {error}") from error
    _refuse_bad_end(text, listed, path, number)


def _refuse_bad_end(text: "_Text", listed: bool, path: Path, number: int) -> None:
    if listed != (text.next_char() == "]"):
        ending = "the list is not closed" if listed else "a list ends that never began"
        raise ConfigError(f"{path}: after record {number}: {ending} (a torn file?)")
    text.skip()
    if listed and text.next_char():
        raise ConfigError(f"{path}: after record {number}: text behind the end of the list")


class _Text:
    """A file's text from where reading stands; only the record at hand is in memory."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._buffer = ""
        self._ended = False
        self._decoder = json.JSONDecoder()

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
            except json.JSONDecodeError as error:
                if self._ended or not self._cut(error):
                    raise
                self._more()
            else:
                self._buffer = self._buffer[end:]
                return value

    def _cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more text may mend the error, as opposed to text that is wrong for good."""
        near_end = error.pos >= len(self._buffer) - _LONGEST_ESCAPE
        return near_end or error.msg.startswith("Unterminated string")

    def _more(self) -> None:
        # At least doubled, so that a record of many chunks is not parsed once a chunk.
        chunk = self._file.read(max(_CHUNK_CHARS, len(self._buffer)))
        self._ended = not chunk
        self._buffer += chunk
