"""DuckDB over a run: views on the committed parts, and the canned queries of `datasets/sql/`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from branchwise.base import ConfigError, StorageError

from .manifest import DAMAGED, Manifest, load_manifest, problem_of, verify_manifest
from .parts import TRAINED
from .schemas import SCHEMAS

if TYPE_CHECKING:
    import networkx

Result = TypeVar("Result")

VIEWS = ("pairs", "trees", "questions", "failures", "predictions", "difficulty", "survival")
"""Names of the views: those of the tables (docs/tables.md)."""

PART_ROWS = 1000
"""Rows of a result that are in memory at once."""

SQL_FOLDER = Path(__file__).resolve().parent.parent / "sql"
"""Canned queries."""

MEMORY_LIMIT = "50%"
"""Share of this machine's memory that queries may use."""

_FIRST = "overview"
_SEALED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",  # the one folder that DuckDB would still write to
    "lock_configuration": True,
}
_RULES = (
    f"A query can read the views {', '.join(VIEWS)}, but cannot write files. To save a result, "
    'redirect the output (make -s inspect SQL="…" > FILE)'
)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A result or a part of it: column names, and rows with a value per column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def connect(run: Path, label: str | None = None) -> duckdb.DuckDBPyConnection:
    """Returns an in-memory database with the views of `VIEWS`, without access to files or network.

    Arrow reads the parts, so a query can neither write nor read a file by itself. A view has all
    columns of its schema, even if a run lacks parts or has older ones. Only files in the manifest
    are read. `predictions` combines all policies and evaluations.

    Args:
        label: Name of a relabelling, whose labels and pairs `trees` and `pairs` then show.

    Raises:
        StorageError: If the run's manifest cannot be read, or a part is missing or damaged.
    """
    manifest = load_manifest(run)
    parts = {view: _parts(run, manifest, view, label) for view in VIEWS}
    connection = duckdb.connect(":memory:", config={"memory_limit": MEMORY_LIMIT, **_SEALED})
    for view, rows in parts.items():
        connection.register(view, rows)
    return connection


def view_table(run: Path, view: str, label: str | None = None) -> pa.Table:
    """Returns all rows of a view (see `connect`), with the column types of its table.

    Raises:
        StorageError: If the run's manifest or a part cannot be read, or a part was changed.
    """
    try:
        return _parts(run, load_manifest(run), view, label).to_table()
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"{run}: a part of {view} cannot be read ({error}). {DAMAGED}"
        ) from error


def sql_table(run: Path, sql: str, label: str | None = None) -> pa.Table:
    """Runs one query on a run's views (see `connect`); returns the result as an Arrow table.

    Raises as `query`.
    """
    with connect(run, label) as connection, _query_errors(run):
        result: pa.Table = _not_empty(connection.sql(sql)).to_arrow_table()
    return result.rename_columns(list(_numbered(result.column_names)))


def query(connection: duckdb.DuckDBPyConnection, run: Path, sql: str) -> Iterator[QueryResult]:
    """Runs one query on an open connection to the run's views.

    Yields:
        Parts of the result, each of at most `PART_ROWS` rows. At least one, which may be empty.

    Raises:
        ConfigError: If the query is empty, or DuckDB refused it; the message gives the position.
        StorageError: If a part is missing or damaged.
    """
    with _query_errors(run):
        cursor = _not_empty(connection.execute(sql))
        columns = _numbered(column[0] for column in cursor.description or ())
        rows = cursor.fetchmany(PART_ROWS) if columns else []
        yield QueryResult(columns, tuple(rows))
        while rows and (rows := cursor.fetchmany(PART_ROWS)):
            yield QueryResult(columns, tuple(rows))


def _not_empty(result: Result | None) -> Result:
    if result is None:  # despite the stubs: only comments or semicolons
        raise ConfigError(f"SQL: the query is empty. {_RULES}")
    return result


@contextmanager
def _query_errors(run: Path) -> Iterator[None]:
    """Raises errors of DuckDB as ours."""
    try:
        yield
    # Arrow could not read, or DuckDB's message quotes bytes that are not UTF-8.
    except (duckdb.InvalidInputException, UnicodeDecodeError) as error:
        if problems := verify_manifest(run):
            raise StorageError("\n".join([*problems, DAMAGED])) from error
        raise ConfigError(f"SQL: {error}\n{_RULES}") from error
    except duckdb.OutOfMemoryException as error:
        problem, *_ = str(error).splitlines()
        raise ConfigError(
            f"SQL: the query needs more than {MEMORY_LIMIT} of this machine's memory "
            f"({problem}). Sort, group or collect fewer rows"
        ) from None  # the advice for other errors of memory concerns settings of a recipe
    except duckdb.Error as error:
        raise ConfigError(f"SQL: {error}\n{_RULES}") from error


def rows_of(connection: duckdb.DuckDBPyConnection, sql: str, *values: str) -> list[dict[str, Any]]:
    """Returns the rows of one of our own queries, by column."""
    cursor = connection.execute(sql, list(values))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def tree_graph(run: Path, question_id: str, label: str | None = None) -> "networkx.DiGraph[Any]":
    """Returns the tree of a question, with edges from parents to children.

    Nodes are the `node_id`s (root 0); their attributes are the columns of `trees` (docs/tables.md).

    Args:
        label: Name of a relabelling, whose labels the nodes then have.

    Raises:
        ConfigError: If the run has no such tree.
        StorageError: If a part of the run is missing or damaged.
    """
    import networkx

    with connect(run, label) as connection:
        sql = "SELECT * FROM trees WHERE question_id = ? ORDER BY node_id"
        rows = rows_of(connection, sql, question_id)
    if not rows:
        raise ConfigError(f"{run}: no tree of question {question_id!r}")
    graph: networkx.DiGraph[Any] = networkx.DiGraph()
    graph.add_nodes_from((row["node_id"], row) for row in rows)
    graph.add_edges_from((row["parent_id"], row["node_id"]) for row in rows if row["node_id"])
    return graph


def _numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names; the second `x` becomes `x_2`, because a JSON object has a name once."""
    occurrences: Counter[str] = Counter()
    unique = []
    for name in names:
        occurrences[name] += 1
        unique.append(name if occurrences[name] == 1 else f"{name}_{occurrences[name]}")
    return tuple(unique)


def canned_queries() -> list[tuple[str, str]]:
    """Returns the title and SQL of every canned query, the overview first, then by file name.

    A file's title is its first line, a comment.

    Raises:
        StorageError: If the folder is missing (an installation without the repository).
    """
    files = sorted(SQL_FOLDER.glob("*.sql"), key=lambda file: (file.stem != _FIRST, file.stem))
    if not files:
        raise StorageError(f"{SQL_FOLDER}: has no queries. Reinstall Branchwise, or use SQL=…")
    texts = [file.read_text(encoding="utf-8") for file in files]
    return [(sql.partition("\n")[0].removeprefix("--").strip(), sql) for sql in texts]


def _parts(run: Path, manifest: Manifest, view: str, label: str | None) -> ds.Dataset:
    schema = SCHEMAS[view]
    relabelled = {"pairs": f"relabelled/{label}/pairs", "trees": f"relabelled/{label}/labels"}
    if label and view in relabelled:
        shown = list(manifest.of(relabelled[view]))
    else:
        shown = [
            part
            for part in manifest.parts
            if part.table.rpartition("/")[2] == view
            and part.table.partition("/")[0] not in ("relabelled", TRAINED)
        ]
    if not shown:
        return ds.dataset(schema.empty_table())
    for part in shown:
        if problem := problem_of(run, part):
            raise StorageError(f"{run / part.path}: {problem}. {DAMAGED}")
    return ds.dataset([str(run / part.path) for part in shown], schema=schema, format="parquet")
