"""Raw rows of a file or of a set on the Hugging Face hub, each with its place."""

import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from branchwise.base import (
    ConfigError,
    Faults,
    as_object,
    composed,
    kind_in_words,
    map_texts,
    parse_json,
    replace_surrogates,
    storable_values,
)

from .delimited import delimited_rows
from .packing import DAMAGED, Kind, NotReadable, Opened, unpacked_name

Raw = dict[str, Any]
Placed = tuple[str, Raw]
"""A place ("file:line") and its object."""

_PARQUET_ROWS = 1024
"""Rows of a parquet file in memory at once."""
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def existing(
    path: str | Path, setting: str, faults: Faults, *, folder: bool = False
) -> Path | None:
    """Returns `path` with `~` resolved; if it is not a file, adds a fault of `setting` and returns
    None.

    Args:
        path: Path as the user wrote it.
        setting: Setting that names it.
        faults: Faults of the input.
        folder: Whether it may be a folder.
    """
    resolved = Path(path).expanduser()
    if resolved.is_file() or (folder and resolved.is_dir()):
        return resolved
    if resolved.exists():
        actual_kind = "a folder" if resolved.is_dir() else "a pipe or a device"
        faults.add(setting, f"{path} is {actual_kind}, not a file")
        return None
    faults.add(
        setting,
        f"{path} does not exist (current folder: {Path.cwd()}; a recipe may also name files "
        "relative to its own folder)",
    )
    return None


def kind_of(path: Path) -> str:
    """Returns the ending of a file's name, without that of its packing, such as ".jsonl"."""
    return Path(unpacked_name(path.name.lower())).suffix


def read_rows(path: Path, faults: Faults) -> Iterator[Placed]:
    """Yields the objects of a table: JSONL, a JSON list, CSV, TSV or parquet, packed or not.

    The content decides how it is read, not the name. Unreadable input becomes a fault: a torn line
    is skipped, a broken file ends early.
    """
    rows = _parquet_rows if _kind_inside(path) == "parquet" else _text_rows
    yield from rows(path, faults)


def in_composed_form(rows: Iterable[Placed]) -> Iterator[Placed]:
    """Yields rows with all text in Unicode's composed form (NFC)."""
    for place, row in rows:
        yield place, map_texts(row, composed)


def _kind_inside(path: Path) -> Kind | None:
    """Returns the kind of a file's content; None if it cannot be read."""
    try:
        with Opened(path) as opened:
            return opened.kind
    except (NotReadable, *DAMAGED):
        return None  # the reader meets it again


def _text_rows(path: Path, faults: Faults) -> Iterator[Placed]:
    lines = text_lines(path, faults)
    start = list(_until_content(lines))
    first = start[-1].lstrip() if start else ""
    all_lines = chain(start, lines)
    if first[:1] == "[" or (first[:1] == "{" and not _is_row(first)):
        yield from _json_rows(path, all_lines, faults)
    elif first[:1] == "{":
        yield from _jsonl_rows(path, all_lines, faults)
    elif first[:1] == "<":
        faults.add(str(path), "is a web page or XML, not a table; check where it came from")
    elif kind_of(path) in (".csv", ".tsv") or "\t" in first or "," in first:
        yield from delimited_rows(path, all_lines, faults)
    elif first:
        faults.add(str(path), "is neither JSONL, JSON, CSV, TSV nor parquet")


def _until_content(lines: Iterator[str]) -> Iterator[str]:
    """Yields lines up to the first one that is not blank."""
    for line in lines:
        yield line
        if line.strip():
            return


def _is_row(line: str) -> bool:
    """Returns whether a line is one object of JSONL, and not a whole document or its beginning."""
    try:
        return not isinstance(parse_object(line).get("data"), list)
    except ValueError:
        return False


def text_lines(path: Path, faults: Faults) -> Iterator[str]:
    """Yields the lines of a text (UTF-8, or UTF-16 with a byte-order mark), unpacked.

    A file that breaks ends early, with a fault. Bytes that are not UTF-8 are faults too. They
    become U+FFFD, so that other faults of the line are found as well.
    """
    number = 0
    try:
        with (
            Opened(path) as opened,
            # A strict reader would stop up to a block before a bad byte, and lose what follows.
            io.TextIOWrapper(
                opened.file, opened.encoding, errors="surrogateescape", newline=""
            ) as text,
        ):
            for number, line in enumerate(text, start=1):
                if not line.isascii() and (bad := _ESCAPED_BYTE.search(line)):
                    bad_byte = f"byte 0x{ord(bad[0]) & 0xFF:02x} at character {bad.start() + 1}"
                    faults.add(
                        f"{path}:{number}", f"is not UTF-8 ({bad_byte}); save the file as UTF-8"
                    )
                yield replace_surrogates(line)
    except NotReadable as error:
        faults.add(str(path), str(error))
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            faults.add(str(path), f"cannot be read: {error}")
        else:
            faults.add(f"{path}:{number + 1}", f"the packed data is damaged ({error}); replace it")


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
    """Yields a list of objects, or those of `{"data": [...]}`; lines of JSON are read as JSONL."""
    before = faults.count
    text = "".join(lines)
    try:
        value = parse_json(text.rstrip("\r\n"))
    except ValueError as error:
        if text.lstrip().startswith("{"):
            yield from _jsonl_rows(path, io.StringIO(text), faults)
        elif faults.count == before:  # otherwise this error only follows from a reported one
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


def _parquet_rows(path: Path, faults: Faults) -> Iterator[Placed]:
    number = 0
    try:
        with Opened(path) as opened, ParquetFile(opened.file) as table:
            names = table.schema_arrow.names
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                faults.add(str(path), f"has the column {repeated[0]!r} twice; rename one")
                return
            for batch in table.iter_batches(_PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", storable_values(row)
    except (pa.ArrowException, *DAMAGED) as error:
        faults.add(f"{path}: row {number + 1}", f"the parquet data is damaged ({error})")


def hub_rows(name: str) -> Iterator[Placed]:
    """Yields the rows of "owner/name", "owner/name:config" or "owner/name:config:split".

    Without a split, reads `train` if it exists, else the first one.

    Raises:
        ConfigError: If the package `datasets` is not installed, or the hub cannot be reached or
            does not have the set.
    """
    path, _, config_and_split = name.partition(":")
    config, _, split = config_and_split.partition(":")
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
            "`pip install 'branchwise[train]'`, or download the file and use data.source jsonl"
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
