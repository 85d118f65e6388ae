"""Arrow schemas of the parquet tables (contracts.md), and records to rows and back.

Schemas are explicit because an all-None column would otherwise be typed `null`. Named values are
lists of struct, never Arrow maps, which break Hugging Face datasets. Rows are read by name, with
the records' defaults, so tables of older versions stay readable.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_args

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from storage.errors import StorageError
from storage.records import SCHEMA_VERSION, Question, Record
from storage.settings import in_words
from storage.text import storable_values

R = TypeVar("R", bound=Record)

_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_NUMBER, _FLAG = pa.float32(), pa.bool_()
_SMALL, _COUNT, _LARGE = pa.int16(), pa.int32(), pa.int64()


def _structs(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(list(fields.items())))


_COMPONENTS = _structs(name=_TEXT, value=_NUMBER)
_MESSAGES = _structs(role=_TEXT, content=_TEXT)
_ROLLOUTS = _structs(
    draw=_COUNT,
    answer=_TEXT,
    em=_NUMBER,
    f1=_NUMBER,
    steps=_SMALL,
    forced=_FLAG,
    tokens=_COUNT,
    stop_reason=_TEXT,
    trajectory=_TEXT,
)


def _schema(**columns: pa.DataType) -> pa.Schema:
    """A table of these columns, in this order, after the two that every table carries."""
    return pa.schema([("schema_version", _SMALL), ("run_id", _TEXT), *columns.items()])


TREES = _schema(
    tree_id=_TEXT,
    question_id=_TEXT,
    source=_TEXT,
    cycle=_SMALL,
    seed=_LARGE,
    node_id=_COUNT,
    parent_id=_COUNT,
    depth=_SMALL,
    stage=_TEXT,
    action=_TEXT,
    text=_TEXT,
    content=_TEXT,
    passages=_structs(id=_TEXT, title=_TEXT, score=_NUMBER),
    terminal=_FLAG,
    forced=_FLAG,
    cut=_FLAG,
    token_ids=pa.list_(_COUNT),
    visits=_COUNT,
    value=_NUMBER,
    judge_score=_NUMBER,
    judge_text=_TEXT,
    rollouts=_ROLLOUTS,
    n_outcomes=_COUNT,
    iteration=_COUNT,
    verdict=_FLAG,
    em=_NUMBER,
    f1=_NUMBER,
    reward=_NUMBER,
    components=_COMPONENTS,
    input_tokens=_COUNT,
    cached_tokens=_COUNT,
    output_tokens=_COUNT,
    prompt_hash=_TEXT,
    policy_digest=_TEXT,
)
"""`trees`: one row a node (`storage.records.TreeNode`)."""

PAIRS = _schema(
    pair_id=_TEXT,
    tree_id=_TEXT,
    question_id=_TEXT,
    source=_TEXT,
    cycle=_SMALL,
    seed=_LARGE,
    question=_TEXT,
    answers=_TEXTS,
    parent_node=_COUNT,
    chosen_node=_COUNT,
    rejected_node=_COUNT,
    depth=_SMALL,
    stage=_TEXT,
    prompt=_MESSAGES,
    chosen=_MESSAGES,
    rejected=_MESSAGES,
    chosen_action=_TEXT,
    rejected_action=_TEXT,
    chosen_reward=_NUMBER,
    rejected_reward=_NUMBER,
    reward_gap=_NUMBER,
    chosen_visits=_COUNT,
    rejected_visits=_COUNT,
    chosen_outcomes=_COUNT,
    rejected_outcomes=_COUNT,
    chosen_components=_COMPONENTS,
    rejected_components=_COMPONENTS,
    policy_model=_TEXT,
    policy_digest=_TEXT,
    judge_model=_TEXT,
    prompt_hash=_TEXT,
    label_digest=_TEXT,
    config_digest=_TEXT,
)
"""`pairs`: one row a preference (`storage.records.Pair`)."""

PREDICTIONS = _schema(
    question_id=_TEXT,
    source=_TEXT,
    type=_TEXT,
    hops=_SMALL,
    guessable=_FLAG,
    evaluation=_TEXT,
    policy=_TEXT,
    protocol=_TEXT,
    policy_digest=_TEXT,
    seed=_LARGE,
    prediction=_TEXT,
    answers=_TEXTS,
    em=_NUMBER,
    f1=_NUMBER,
    cover_em=_NUMBER,
    judge=_NUMBER,
    judge_model=_TEXT,
    steps=_SMALL,
    searches=_SMALL,
    valid_searches=_SMALL,
    backtracks=_SMALL,
    forced=_FLAG,
    refused=_FLAG,
    format_ok=_FLAG,
    format_failures=_TEXTS,
    relevance=_NUMBER,
    relevance_full=_FLAG,
    all_correct=_FLAG,
    retrievals=_SMALL,
    corrections=_SMALL,
    evaluated=_NUMBER,
    copied=_NUMBER,
    forged=_COUNT,
    turn_tokens=_COUNT,
    stop_reason=_TEXT,
    supporting_recall=_NUMBER,
    trajectory=_TEXT,
    input_tokens=_COUNT,
    cached_tokens=_COUNT,
    output_tokens=_COUNT,
    latency_s=_NUMBER,
)
"""`predictions`: one row a question and policy (`storage.records.Prediction`)."""

FAILURES = _schema(
    question_id=_TEXT, stage=_TEXT, kind=_TEXT, attempts=_COUNT, detail=_TEXT, at=_TEXT
)
"""`failures`: one row a question that could not be finished (`storage.records.Failure`)."""

QUESTIONS = _schema(
    question_id=_TEXT,
    source=_TEXT,
    question=_TEXT,
    answers=_TEXTS,
    type=_TEXT,
    hops=_SMALL,
    answerable=_FLAG,
    supporting_titles=_TEXTS,
    supporting_ids=_TEXTS,
    paragraphs=_structs(title=_TEXT, text=_TEXT, is_supporting=_FLAG, id=_TEXT),
    split=_TEXT,
    licence=_TEXT,
    extra=_TEXT,
)
"""`questions`: one row a question; `Question.id` is `question_id`, `extra` is JSON."""

SURVIVAL = _schema(
    tree_id=_TEXT,
    question_id=_TEXT,
    source=_TEXT,
    cycle=_SMALL,
    seed=_LARGE,
    node_id=_COUNT,
    temperature=_NUMBER,
    rollouts=_ROLLOUTS,
    policy_digest=_TEXT,
)
"""`survival`: one row a node that was rolled out afresh (`storage.records.FreshRollouts`)."""

SCHEMAS = {
    "trees": TREES,
    "labels": TREES,  # a relabelled run's nodes: the same rows under other labels
    "pairs": PAIRS,
    "predictions": PREDICTIONS,
    "failures": FAILURES,
    "questions": QUESTIONS,
    "survival": SURVIVAL,
}
"""Schemas by the last word of a table's name ("pairs", "relabelled/strict/pairs")."""


CHUNK = 1000
"""Records turned into rows at once."""


def schema_of(table: str) -> pa.Schema:
    """The schema of a table of the run, by name.

    Raises:
        StorageError: there is no such table.
    """
    kind = table.rpartition("/")[2]
    if kind not in SCHEMAS:
        raise StorageError(f"no table is called {table!r}; the tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[kind]


def rows_to_table(records: Iterable[Record], schema: pa.Schema, run_id: str) -> pa.Table:
    """Records as an Arrow table of `schema`; lone surrogates become U+FFFD (`storage.text`).

    Raises:
        StorageError: a value does not fit its column, or a field has none.
    """
    waiting = iter(records)
    # By the thousand: as dicts, the questions of a large run would take more than all of its work.
    chunks = iter(lambda: list(islice(waiting, CHUNK)), [])
    tables = [_chunk(chunk, schema, run_id) for chunk in chunks]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def _chunk(records: Sequence[Record], schema: pa.Schema, run_id: str) -> pa.Table:
    provenance = {"schema_version": SCHEMA_VERSION, "run_id": run_id}
    rows = [{**provenance, **_row(record)} for record in records]
    if rows and (unknown := rows[0].keys() - set(schema.names)):
        raise StorageError(f"no column for {sorted(unknown)}: the records are of another table")
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except UnicodeEncodeError:
        return pa.Table.from_pylist([storable_values(row) for row in rows], schema=schema)
    except (pa.ArrowException, OverflowError) as error:
        raise StorageError(_misfit(rows, schema, error)) from error


def table_to_records(table: pa.Table, cls: type[R]) -> list[R]:
    """Rows as records, by column name.

    Columns that the record lacks are ignored; columns that the table lacks (older versions) take
    the record's default.

    Raises:
        StorageError: a needed column is missing, a value is out of range, or the table was
            written by a newer version.
    """
    _refuse_newer(table)
    fields = [name for name in cls.model_fields if _column(cls, name) in table.column_names]
    try:
        columns = table.select([_column(cls, name) for name in fields]).rename_columns(fields)
        return [cls.model_validate(_restored(row, cls)) for row in columns.to_pylist()]
    except ValidationError as error:
        raise StorageError(
            f"cannot read rows as {cls.__name__}: {in_words(error, most=3)}"
        ) from error


def _row(record: Record) -> dict[str, Any]:
    row = record.model_dump()
    if isinstance(record, Question):
        row["question_id"] = row.pop("id")
        extra = storable_values(row["extra"])
        row["extra"] = json.dumps(extra, ensure_ascii=False, sort_keys=True, default=str)
    return row


def _restored(row: dict[str, Any], cls: type[Record]) -> dict[str, Any]:
    restored = _without_filler(row, cls)
    if cls is Question and isinstance(restored.get("extra"), str):
        restored["extra"] = json.loads(restored["extra"])
    return restored


def _column(cls: type[Record], field: str) -> str:
    """The column of a record's field: a question's `id` is `question_id`, as everywhere."""
    return "question_id" if cls is Question and field == "id" else field


def _without_filler(row: Mapping[str, Any], cls: type[BaseModel]) -> dict[str, Any]:
    """The row without nulls where the record has a default.

    Reading parts of several versions together fills the columns that the older ones lack.
    """
    nested = _nested_records(cls)
    kept: dict[str, Any] = {}
    for name, value in row.items():
        if value is None and not cls.model_fields[name].is_required():
            continue
        inner = nested.get(name)
        kept[name] = [_without_filler(v, inner) for v in value] if inner and value else value
    return kept


@cache
def _nested_records(cls: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Fields that hold a tuple of records, with the record's class."""
    return {
        name: arguments[0]
        for name, field in cls.model_fields.items()
        if (arguments := get_args(field.annotation))
        and isinstance(arguments[0], type)
        and issubclass(arguments[0], BaseModel)
    }


def _refuse_newer(table: pa.Table) -> None:
    if "schema_version" not in table.column_names or not table.num_rows:
        return
    newest = max((v for v in table["schema_version"].to_pylist() if v is not None), default=0)
    if newest > SCHEMA_VERSION:
        raise StorageError(
            f"the table has schema version {newest}, this Branchwise reads up to "
            f"{SCHEMA_VERSION}: install a newer version"
        )


def _misfit(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, error: Exception) -> str:
    """Which column a value does not fit, and in which row."""
    for field in schema:
        for number, row in enumerate(rows):
            try:
                pa.array([row.get(field.name)], field.type)
            except (pa.ArrowException, OverflowError) as reason:
                return f"row {number}: a value does not fit column {field.name} ({reason})"
    return f"rows do not fit the table ({error})"
