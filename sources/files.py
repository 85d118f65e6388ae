"""Raw rows of a file, each with the place it came from, and the faults found on the way."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from storage.errors import ConfigError
from storage.reading import Faults, open_text
from storage.text import storable_values

Raw = dict[str, Any]
Placed = tuple[str, Raw]
"""A place ("file:line") and the object that stands there."""


def existing(path: str | Path, setting: str) -> Path:
    """`path` with `~` resolved.

    Raises:
        ConfigError: there is nothing; `setting` is the key of the recipe that named it.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise ConfigError(f"{setting}: there is no file {path} (from {Path.cwd()})")
    return found


def kind_of(path: Path) -> str:
    """The file's ending without `.gz`, such as ".jsonl"."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def read_rows(path: Path, faults: Faults) -> Iterator[Placed]:
    """Objects of a JSONL, JSON, CSV or TSV file (`.gz` too; other endings are read as JSONL).

    What cannot be read becomes a fault: a torn line is skipped, a broken file ends there.
    """
    kind = kind_of(path)
    reader = {".csv": _csv_rows, ".tsv": _csv_rows, ".json": _json_rows}.get(kind, _jsonl_rows)
    try:
        with open_text(path) as file:
            yield from reader(path, file, faults)
    except OSError as error:
        faults.add(str(path), f"cannot be read: {error}")


def sound_lines(path: Path, lines: Iterable[str], faults: Faults) -> Iterator[str]:
    """`lines` until the file breaks, which is a fault at the line that could not be read."""
    number = 0
    iterator = iter(lines)
    while True:
        number += 1
        try:
            line = next(iterator)
        except StopIteration:
            return
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            faults.add(f"{path}:{number}", f"the gzip data is broken ({error}); copy it again")
            return
        except UnicodeDecodeError as error:
            faults.add(f"{path}:{number}", f"is not UTF-8 ({error.reason} near here)")
            return
        yield line


def parse_object(text: str) -> Raw:
    """One JSON object; lone surrogates become U+FFFD (no table can hold them).

    Raises:
        ValueError: not JSON, not an object, or a number that JSON does not have.
    """
    try:
        value = storable_values(json.loads(text, parse_constant=_no_constant))
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at character {error.colno})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"is a JSON {type(value).__name__}, not an object")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"has {name}, which is not JSON")


def _jsonl_rows(path: Path, file: Iterable[str], faults: Faults) -> Iterator[Placed]:
    for number, line in enumerate(sound_lines(path, file, faults), start=1):
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", parse_object(line)
        except ValueError as error:
            faults.add(f"{path}:{number}", str(error))


def _json_rows(path: Path, file: TextIO, faults: Faults) -> Iterator[Placed]:
    """A list of objects, or `{"data": [...]}`; a `.json` file of lines is read as JSONL."""
    before = faults.count
    text = "".join(sound_lines(path, file, faults))
    if faults.count > before:
        return
    try:
        value = storable_values(json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("{"):
            yield from _jsonl_rows(path, io.StringIO(text), faults)
        else:
            faults.add(str(path), f"is not JSON ({error})")
        return
    if isinstance(value, dict):
        value = value["data"] if isinstance(value.get("data"), list) else [value]
    if not isinstance(value, list):
        faults.add(str(path), "is neither a list of objects nor JSONL")
        return
    for number, item in enumerate(value, start=1):
        if isinstance(item, dict):
            yield f"{path}: item {number}", item
        else:
            faults.add(f"{path}: item {number}", "is not an object")


def _csv_rows(path: Path, file: TextIO, faults: Faults) -> Iterator[Placed]:
    delimiter = "\t" if kind_of(path) == ".tsv" else ","
    reader = csv.DictReader(sound_lines(path, file, faults), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            faults.add(f"{path}:{reader.line_num}", f"is not {kind_of(path)[1:]} ({error})")
            return
        place = f"{path}:{reader.line_num}"
        if None in row or None in row.values():
            faults.add(place, f"has not the {len(reader.fieldnames or ())} columns of the header")
        else:
            yield place, row
