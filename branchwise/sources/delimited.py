"""Rows of CSV and TSV files in any dialect, read by the module `csv`.

DuckDB finds the dialect: spreadsheets quote, exports of databases may not, and a quotation mark at
the start of a field may belong to the text.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import duckdb

from branchwise.base import Faults

_SAMPLE_CHARACTERS = 64 << 20
"""Length of the start of a file in which the dialect is found."""
_DELIMITERS = ",;|\t"
_SNIFF = """
SELECT Quote, Escape
FROM sniff_csv(?, delim=?, header=true, all_varchar=true, ignore_errors=true, sample_size=-1,
               max_line_size=?)
"""


def delimited_rows(
    path: Path, lines: Iterable[str], faults: Faults
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each row below the header with its place, the line on which it starts.

    A row with another number of fields than the header is a fault.
    """
    csv.field_size_limit(sys.maxsize)
    unread = iter(lines)
    sample, size = [], 0
    for line in unread:
        sample.append(line)
        size += len(line)
        if size > _SAMPLE_CHARACTERS:
            break
    reader = csv.reader(chain(sample, unread), strict=True, **_dialect(sample))
    yield from _rows(path, reader, faults)


def _rows(path: Path, reader: Any, faults: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    header: list[str] | None = None
    start = 1
    try:
        for fields in reader:
            place, start = f"{path}:{start}", reader.line_num + 1
            if not fields:  # a blank line
                continue
            if header is None:
                header = [name.strip() for name in fields]
                if repeated := sorted({name for name in header if header.count(name) > 1}):
                    faults.add(place, f"the header has {repeated[0]!r} twice; rename one")
                    return
            elif len(fields) == len(header):
                yield place, dict(zip(header, fields, strict=True))
            else:
                faults.add(
                    place, f"has {len(fields)} fields, but the header has {len(header)} columns"
                )
    except csv.Error as error:
        faults.add(f"{path}:{start}", f"cannot be read ({error})")


def _dialect(sample: Sequence[str]) -> dict[str, Any]:
    """Returns the dialect of the lines of a file as arguments of `csv.reader`."""
    header = next((line for line in sample if line.strip()), "")
    delimiter = max(_DELIMITERS, key=header.count)
    with NamedTemporaryFile("w", encoding="utf-8", newline="") as copy:
        copy.writelines(sample)
        copy.flush()
        values = (copy.name, delimiter, 2 * _SAMPLE_CHARACTERS)
        try:
            ((quote, escape),) = duckdb.connect().execute(_SNIFF, values).fetchall()
        except duckdb.Error:  # the rows differ too much
            quote, escape = '"', '"'
    if len(quote) != 1:  # "(empty)"
        return {"delimiter": delimiter, "quoting": csv.QUOTE_NONE}
    if escape == "\\":
        return {"delimiter": delimiter, "quotechar": quote, "escapechar": "\\"}
    return {"delimiter": delimiter, "quotechar": quote}
