"""Raw rows of a file or of a set on the Hugging Face hub, each with its place."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from base.errors import ConfigError
from base.faults import Faults
from base.plain_json import as_object, kind_in_words, parse_json
from base.text import replace_surrogates, storable_values

Raw = dict[str, Any]
Placed = tuple[str, Raw]
"""A place ("file:line") and its object."""

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def existing(path: str | Path, setting: str, faults: Faults) -> Path | None:
    """Returns `path` with `~` resolved; if it is missing, adds a fault of `setting` and returns
    None.
    """
    resolved = Path(path).expanduser()
    if resolved.exists():
        return resolved
    faults.add(
        setting,
        f"{path} does not exist (current folder: {Path.cwd()}; a recipe may also name files "
        "relative to its own folder)",
    )
    return None


def kind_of(path: Path) -> str:
    """Returns the file's ending without `.gz`, such as ".jsonl"."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_rows(path: Path, faults: Faults) -> Iterator[Placed]:
    """Yields objects of a JSONL, JSON, CSV or TSV file (`.gz` too; other endings are read as
    JSONL).

    Unreadable input becomes a fault: a torn line is skipped, a broken file ends early.
    """
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".json": _json_rows}
    yield from readers.get(kind_of(path), _jsonl_rows)(path, text_lines(path, faults), faults)


def text_lines(path: Path, faults: Faults) -> Iterator[str]:
    """Yields the lines of a text (UTF-8, a byte-order mark is dropped), unpacking `.gz`.

    A file that breaks ends early, with a fault. Bytes that are not UTF-8 are faults too. They
    become U+FFFD, so that other faults of the line are found as well.
    """
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    number = 0
    try:
        # A strict reader would stop up to a block before a bad byte, and lose the following lines.
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for number, line in enumerate(file, start=1):
                if not line.isascii() and (bad := _ESCAPED_BYTE.search(line)):
                    where = f"byte 0x{ord(bad[0]) & 0xFF:02x} at character {bad.start() + 1}"
                    faults.add(
                        f"{path}:{number}", f"is not UTF-8 ({where}); save the file as UTF-8"
                    )
                yield replace_surrogates(line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        faults.add(f"{path}:{number + 1}", f"the gzip data is damaged ({error}); replace the file")
    except OSError as error:
        faults.add(str(path), f"cannot be read: {error}")


def parse_object(text: str) -> Raw:
    """Returns one JSON object; lone surrogates become U+FFFD (tables cannot store them).

    Raises:
        ValueError: If the text is not JSON, not an object, or has a number that JSON does not
        allow.
    """
    # Without its line break, the error of a torn line is "unfinished string".
    return as_object(parse_json(text.rstrip("\r\n")))


def _jsonl_rows(path: Path, lines: Iterable[str], faults: Faults) -> Iterator[Placed]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", parse_object(line)
        except ValueError as error:
            faults.add(f"{path}:{number}", str(error))


def _json_rows(path: Path, lines: Iterable[str], faults: Faults) -> Iterator[Placed]:
    """Yields a list of objects, or `{"data": [...]}`; a `.json` file of lines is read as JSONL."""
    before = faults.count
    text = "".join(lines)
    try:
        value = parse_json(text.rstrip("\r\n"))
    except ValueError as error:
        if text.lstrip().startswith("{"):
            yield from _jsonl_rows(path, io.StringIO(text), faults)
        elif faults.count == before:
            faults.add(str(path), str(error))
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
            faults.add(f"{path}: item {number}", f"is {kind_in_words(item)}, not an object")


def _csv_rows(path: Path, lines: Iterable[str], faults: Faults) -> Iterator[Placed]:
    delimiter = "\t" if kind_of(path) == ".tsv" else ","
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                columns = len(reader.fieldnames or ())
                faults.add(place, f"does not have the {columns} columns of the header")
            else:
                yield place, row
    except csv.Error as error:
        faults.add(f"{path}:{reader.line_num}", f"is not {kind_of(path)[1:]} ({error})")


def hub_rows(name: str) -> Iterator[Placed]:
    """Yields the rows of "owner/name", "owner/name:config" or "owner/name:config:split".

    Without a split, reads `train` if it exists, else the first one.

    Raises:
        ConfigError: If the package `datasets` is not installed, or the hub cannot be reached or
            does not have the set.
    """
    path, _, rest = name.partition(":")
    config, _, split = rest.partition(":")
    table = _load(path, config or None)
    chosen = split or ("train" if "train" in table else next(iter(table)))
    if chosen not in table:
        raise ConfigError(
            f"{path}: unknown split {chosen!r}; use one of {', '.join(sorted(table))}"
        )
    for number, row in enumerate(table[chosen], start=1):
        yield f"{name} ({chosen}): row {number}", storable_values(dict(row))


def _load(path: str, config: str | None) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(
            "data.source hub needs the package `datasets`: run `make setup EXTRAS=train` or "
            "`pip install -e .[train]`, or download the file and use data.source jsonl"
        ) from error
    try:
        return load_dataset(path, config)
    except Exception as error:  # the hub's client raises a dozen unrelated types
        raise ConfigError(
            f"cannot load {path} from the Hugging Face hub ({type(error).__name__}: "
            f"{error}). Without network access, download the file elsewhere. Then set "
            "`source` to hotpotqa, 2wiki, musique, popqa, bamboogle, nq, flashrag or jsonl, "
            "and `questions` to the file"
        ) from error
