"""Arrow schemas of the parquet tables (docs/tables.md), and conversion between records and rows.

A table has a column for each field of its record. Schemas are built from the fields' types, because
a column of None values only would be untyped. Named values are lists of struct, never Arrow maps,
which break Hugging Face datasets. Rows are read by column name, with the records' defaults, so
tables of older versions stay readable.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ValidationError

from branchwise.base import StorageError, describe_errors, storable_values
from branchwise.types import (
    SCHEMA_VERSION,
    Difficulty,
    Failure,
    FreshRollouts,
    Pair,
    Prediction,
    Question,
    Record,
    TreeNode,
)

R = TypeVar("R", bound=Record)

_ARROW: dict[Any, pa.DataType] = {
    str: pa.string(),
    float: pa.float32(),
    bool: pa.bool_(),
    int: pa.int32(),
}
"""Arrow types of Python types; `types.Small` and `Large` name their own."""


def _schema(record: type[Record]) -> pa.Schema:
    """Returns the schema of a record: the two columns of every table, then its fields in order."""
    columns = [(_column(record, name), kind) for name, kind in _fields(record)]
    return pa.schema([("schema_version", pa.int16()), ("run_id", pa.string()), *columns])


def _column(cls: type[Record], field: str) -> str:
    """Returns the column of a record's field; the `id` of a question is in `question_id`."""
    return "question_id" if cls is Question and field == "id" else field


def _fields(record: type) -> list[tuple[str, pa.DataType]]:
    hints = get_type_hints(record, include_extras=True)
    names = record.model_fields if issubclass(record, BaseModel) else record.__annotations__
    return [(name, _arrow(hints[name])) for name in names]


def _arrow(hint: Any) -> pa.DataType:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _ARROW:
        return _ARROW[hint]
    if origin is Annotated:
        return pa.type_for_alias(inner[1])
    if origin is tuple:
        return pa.list_(_arrow(inner[0]))
    if origin in (Union, UnionType):  # X | None: every column takes nulls
        return _arrow(inner[0])
    if isinstance(hint, type):
        return pa.struct(_fields(hint))
    return pa.string()  # one of a few names, or (`Question.extra`) JSON


TREES, PAIRS, QUESTIONS = _schema(TreeNode), _schema(Pair), _schema(Question)

SCHEMAS = {
    "trees": TREES,
    "labels": TREES,  # a relabelled run's nodes: the same rows under other labels
    "pairs": PAIRS,
    "predictions": _schema(Prediction),
    "failures": _schema(Failure),
    "questions": QUESTIONS,
    "survival": _schema(FreshRollouts),
    "difficulty": _schema(Difficulty),
}
"""Schemas by the last word of a table's name ("pairs", "relabelled/strict/pairs")."""


CHUNK = 1000
"""Number of records that are converted to rows at once."""


def schema_of(table: str) -> pa.Schema:
    """Returns the schema of a table of the run, by name.

    Raises:
        StorageError: If the table is unknown.
    """
    kind = table.rpartition("/")[2]
    if kind not in SCHEMAS:
        raise StorageError(f"unknown table {table!r}; the tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[kind]


def rows_to_table(records: Iterable[Record], schema: pa.Schema, run_id: str) -> pa.Table:
    """Converts records to an Arrow table of `schema`; lone surrogates become U+FFFD.

    Raises:
        StorageError: If a value does not fit its column, or a field lacks a column.
    """
    waiting = iter(records)
    # In chunks: as dicts, all questions of a large run would take more memory than its other work.
    chunks = iter(lambda: list(islice(waiting, CHUNK)), [])
    tables = [_chunk(chunk, schema, run_id) for chunk in chunks]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def _chunk(records: Sequence[Record], schema: pa.Schema, run_id: str) -> pa.Table:
    provenance = {"schema_version": SCHEMA_VERSION, "run_id": run_id}
    rows = [{**provenance, **_row(record)} for record in records]
    if rows and (unknown := rows[0].keys() - set(schema.names)):
        raise StorageError(f"no column for {sorted(unknown)}: the records belong to another table")
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except UnicodeEncodeError:
        return pa.Table.from_pylist([storable_values(row) for row in rows], schema=schema)
    except (pa.ArrowException, OverflowError) as error:
        raise StorageError(f"rows do not fit the table: {error}") from error


def table_to_records(table: pa.Table, cls: type[R]) -> list[R]:
    """Returns the rows as records, by column name.

    Columns that the record lacks are ignored; columns that the table lacks (older versions) take
    the record's default.

    Raises:
        StorageError: If a needed column is missing, a value is out of range, or the table was
            written by a newer version.
    """
    versions = table["schema_version"] if "schema_version" in table.column_names else []
    newest = pc.max(versions).as_py() if len(versions) else None
    if newest is not None and newest > SCHEMA_VERSION:
        raise StorageError(
            f"the table has schema version {newest}, this Branchwise reads up to "
            f"{SCHEMA_VERSION}: install a newer version"
        )
    fields = [name for name in cls.model_fields if _column(cls, name) in table.column_names]
    try:
        columns = table.select([_column(cls, name) for name in fields]).rename_columns(fields)
        return [cls.model_validate(_restored(row, cls)) for row in columns.to_pylist()]
    except ValidationError as error:
        raise StorageError(
            f"cannot read rows as {cls.__name__}: {describe_errors(error, most=3)}"
        ) from error


def _row(record: Record) -> dict[str, Any]:
    row = record.model_dump()
    if isinstance(record, Question):
        row["question_id"] = row.pop("id")
        extra = storable_values(row["extra"])
        row["extra"] = json.dumps(extra, ensure_ascii=False, sort_keys=True, default=str)
    return row


def _restored(row: dict[str, Any], cls: type[Record]) -> dict[str, Any]:
    """Returns the values of a record, without nulls for fields with a default.

    Reading parts of several versions together fills the columns that the older ones lack.
    """
    restored = {
        name: value
        for name, value in row.items()
        if value is not None or cls.model_fields[name].is_required()
    }
    if cls is Question and isinstance(restored.get("extra"), str):
        restored["extra"] = json.loads(restored["extra"])
    return restored
