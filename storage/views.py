"""DuckDB over a run: views on the committed parts, and the canned queries of `datasets/sql/`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from storage.errors import ConfigError, StorageError
from storage.manifest import Manifest, load_manifest
from storage.schemas import SCHEMAS

VIEWS = {
    "pairs": "pairs",
    "nodes": "trees",
    "questions": "questions",
    "failures": "failures",
    "predictions": "predictions",
}
"""Views, and the tables they show."""

_FIRST = "overview"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Column names, and rows of as many values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def connect(run: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views of `VIEWS`; nothing is written to the run.

    A view has the columns of its schema even where a run has no parts, or older ones. Only
    files that the manifest names are read. Relabelled tables have no view. `predictions` shows
    those of all policies and question sets.

    Raises:
        StorageError: the run has no readable manifest, or a part is missing or damaged.
    """
    manifest = load_manifest(run)
    # Queries on a run must not fetch code from the network.
    quiet: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=quiet)
    try:
        for view, table in VIEWS.items():
            connection.register(f"no_{view}", SCHEMAS[table].empty_table())
            connection.execute(_view(run, manifest, view, table))
    except duckdb.Error as error:
        connection.close()
        raise StorageError(
            f"{run}: a part that the manifest names cannot be read ({error})"
        ) from error
    return connection


def run_sql(run: Path, sql: str) -> QueryResult:
    """Run one query on a run's views.

    Raises:
        ConfigError: DuckDB refused the query; its message says where.
        StorageError: see `connect`.
    """
    connection = connect(run)
    try:
        cursor = connection.execute(sql)
        columns = tuple(column[0] for column in cursor.description or ())
        return QueryResult(columns, tuple(cursor.fetchall()) if columns else ())
    except duckdb.IOException as error:
        raise StorageError(f"{run}: a file cannot be read ({error})") from error
    except duckdb.Error as error:
        raise ConfigError(f"SQL: {error}") from error
    finally:
        connection.close()


def sql_folder() -> Path:
    """`datasets/sql/` of the repository."""
    return Path(__file__).resolve().parent.parent / "datasets" / "sql"


def canned_queries() -> list[tuple[str, str]]:
    """Title and SQL of every canned query, the overview first, then by file name.

    A file's title is its first line, a comment.

    Raises:
        StorageError: the folder is missing (an installation without the repository).
    """
    files = sorted(sql_folder().glob("*.sql"), key=lambda file: (file.stem != _FIRST, file.stem))
    if not files:
        raise StorageError(f"{sql_folder()}: no queries here; run from a checkout, or use SQL=…")
    return [_titled(file.read_text(encoding="utf-8")) for file in files]


def _titled(sql: str) -> tuple[str, str]:
    return sql.partition("\n")[0].removeprefix("--").strip(), sql


def _view(run: Path, manifest: Manifest, view: str, table: str) -> str:
    """The empty table of the schema gives names, order and types; parts are added by name."""
    sql = f"CREATE VIEW {view} AS SELECT * FROM no_{view}"
    shown = [
        _literal(run / part.path)
        for part in manifest.parts
        if part.table.rpartition("/")[2] == table and not part.table.startswith("relabelled/")
    ]
    if shown:
        options = "union_by_name = true, hive_partitioning = false"
        sql += f" UNION ALL BY NAME SELECT * FROM read_parquet([{', '.join(shown)}], {options})"
    return sql


def _literal(path: Path) -> str:
    """A path as a SQL string that means this one file and is no pattern."""
    plain = "".join(f"[{c}]" if c in "*?[" else c for c in str(path))
    return "'" + plain.replace("'", "''") + "'"
