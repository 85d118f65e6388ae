"""Parquet parts of a run: written whole, named by the manifest, read through it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from branchwise.base import StorageError, atomic_write_bytes, open_inside
from branchwise.types import Question

from .manifest import DAMAGED, PartInfo, load_manifest, problem_of, remove_parts
from .schemas import schema_of, table_to_records

GROWN = ("trees", "pairs")
"""Tables of annotated questions; parts with one number belong together."""
TRAINED = "trained"
"""Tables `trained/<name>/questions` hold the questions of a run's outcome RL trainings."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part before it is written: its manifest entry, and the bytes of its file."""

    info: PartInfo
    content: bytes

    def write(self, run: Path) -> None:
        """Writes the file; the part counts once `add_parts` has named it.

        A part without rows has no file, because readers of other tools fail on one.

        If a committed file has other content, its table leaves the manifest first. Otherwise a kill
        before the next commit would leave the old hash with the new content, as if it were damaged.

        Raises:
            StorageError: If the file could not be written.
        """
        if (run / self.info.path).exists():
            older = load_manifest(run).of(self.info.table)
            same_file = [part for part in older if part.path == self.info.path]
            if any(part.sha256 != self.info.sha256 for part in same_file):
                remove_parts(run, older)
        if self.info.rows:
            atomic_write_bytes(run / self.info.path, self.content)
        else:
            (run / self.info.path).unlink(missing_ok=True)


def part_of(table: str, rows: pa.Table, part: int | None = None) -> Part:
    """Returns the rows as a parquet file (zstd), which is not written yet.

    The same rows give the same bytes, as long as the version of pyarrow is the same.

    Args:
        table: Name of the table, which is also its location: "pairs",
            "eval/<policy>/<set>/predictions".
        part: Number of the part, `<table>/part-<part>.parquet`; None for a table of one file,
            `<table>.parquet`.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    # Hashed in memory, so that the hash also detects disk faults.
    content = sink.getvalue().to_pybytes()
    info = PartInfo(
        table=table,
        path=f"{table}.parquet" if part is None else f"{table}/part-{part:05d}.parquet",
        rows=rows.num_rows,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    return Part(info, content)


def write_part(run: Path, table: str, rows: pa.Table, part: int | None = None) -> PartInfo:
    """Writes the file of a part (see `part_of`); it counts once `add_parts` has named it.

    Raises:
        StorageError: If the file could not be written.
    """
    new_part = part_of(table, rows, part)
    new_part.write(run)
    return new_part.info


def read_parts(run: Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns all committed rows of a table, in the order of the parts.

    Without parts, the result is an empty table of the schema. Parts of different versions are read
    together: missing columns are None.

    Raises:
        ConfigError: If a part is not a regular file inside the run.
        StorageError: If a part differs from its committed hash; the message names its path.
    """
    parts = load_manifest(run).of(table)
    read = [read_part(run, part, columns) for part in parts]
    if not read:
        empty = schema_of(table).empty_table()
        return empty.select(list(columns)) if columns is not None else empty
    return pa.concat_tables(read, promote_options="permissive")


def question_ids(run: Path, table: str) -> set[str]:
    """Returns the questions with a committed row in a table, which a resumed run can skip."""
    return set(pc.unique(read_parts(run, table, ["question_id"])["question_id"]).to_pylist())


def stored_questions(run: Path) -> dict[str, Question]:
    """Returns the questions of a run by id.

    Raises:
        StorageError: If a part is damaged, or its rows are not questions.
    """
    questions = table_to_records(read_parts(run, "questions"), Question)
    return {question.id: question for question in questions}


def part_number(part: PartInfo) -> int:
    """Returns the number of a numbered part."""
    return int(PurePosixPath(part.path).stem.removeprefix("part-"))


def read_part(run: Path, part: PartInfo, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads the rows of one part; see `read_parts`."""
    path = run / part.path
    if problem := problem_of(run, part):
        raise StorageError(f"{path}: {problem}. {DAMAGED}")
    try:
        # A `ParquetFile`, because `read_table` would make columns of folders named like `a=b`.
        with open_inside(run, part.path) as opened, pq.ParquetFile(opened) as file:
            _check_columns(path, part.table, file.schema_arrow)
            if columns is not None:
                columns = [name for name in columns if name in file.schema_arrow.names]
            return file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{path}: cannot be read ({error})") from error


def _check_columns(path: Path, table: str, columns: pa.Schema) -> None:
    """Checks that a part has the columns of its table; older ones may lack some.

    Raises:
        StorageError: If a column is repeated or has another type, or `question_id` is missing.
    """
    schema = schema_of(table)
    try:
        if len(set(columns.names)) < len(columns.names):
            raise pa.ArrowInvalid("a column is repeated")
        shared = pa.schema([columns.field(name) for name in schema.names if name in columns.names])
        pa.unify_schemas([schema, shared], promote_options="permissive")
        if "question_id" in set(schema.names) - set(columns.names):
            raise pa.ArrowInvalid("column question_id is missing")
    except pa.ArrowException as error:
        raise StorageError(
            f"{path}: its columns do not match table {table} ({error}). {DAMAGED}"
        ) from error
