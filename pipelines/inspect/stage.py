"""`make inspect`: DuckDB on a run.

    make inspect RUN=datasets/atlas
    make inspect RUN=datasets/atlas SQL="select action, count(*) from trees group by 1"
    make -s inspect RUN=datasets/atlas SQL="select * from pairs" ARGS="--format csv" > pairs.csv

The views have the names and columns of the tables (docs/tables.md) and show the parts in the
manifest. `--label` shows the trees and pairs of a relabelling. Without `SQL`, prints the statistics
of ReasonRAG's table 1, then reads queries if it runs in a terminal. Long results are printed in
parts.
"""

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Annotated, Any, Literal

import duckdb
from rich.table import Table
from rich.text import Text

from branchwise.base import (
    ConfigError,
    bare,
    dump_json,
    markdown_rows,
    markdown_table,
    replace_surrogates,
    terminal_safe,
    terminal_safe_lines,
)
from branchwise.runs import (
    Label,
    Run,
    StageContext,
    StageResult,
    Terminal,
    check_relabelling,
    existing_run,
    on_stop_signal,
)
from branchwise.storage import VIEWS, QueryResult, canned_queries, connect, query


def inspect(
    context: StageContext,
    format: Annotated[Literal["table", "csv", "json", "md"], "of the result"] = "table",
    label: Label = None,
) -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    check_relabelling(run, label)
    sql = replace_surrogates(os.environ.get("SQL", "")).strip()
    if not sql and format in {"csv", "json"}:
        raise ConfigError(f'--format {format}: needs a query, as in SQL="select * from pairs"')
    try:
        with connect(run.folder, label) as connection:
            if sql:
                rows = show(context.console, _interruptible_query(connection, run, sql), format)
                return StageResult({"rows": rows})
            for title, canned in canned_queries():
                show(context.console, _interruptible_query(connection, run, canned), format, title)
            if context.console.is_terminal and sys.stdin.isatty():
                _prompt(context.console, run, connection)
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return StageResult({"run": str(run.folder)})


def _interruptible_query(
    connection: duckdb.DuckDBPyConnection, run: Run, sql: str
) -> Iterator[QueryResult]:
    """Yields the parts of a result; a stop signal ends the query and raises KeyboardInterrupt.

    DuckDB runs in a thread. In the main thread, it would delay signals, often until it ends.
    """
    parts = query(connection, run.folder, sql)
    signals: list[int] = []
    with ThreadPoolExecutor(1) as thread:
        while True:
            with on_stop_signal(signals.append):
                part = thread.submit(next, parts, None)
                while wait([part], timeout=0.05).not_done:
                    if signals:  # repeated: an interrupt before the query begins has no effect
                        connection.interrupt()
            if signals:
                raise KeyboardInterrupt
            if (result := part.result()) is None:
                return
            yield result


def show(
    console: Terminal, parts: Iterator[QueryResult], form: str, title: str | None = None
) -> int:
    """Prints the parts of a result as `table`, `csv`, `json` or `md`; returns the number of rows.

    In a file or a pipe, a table is as wide as its content, and the other formats hold the stored
    text; on a terminal, all text is escaped.
    """
    stream = sys.stdout if sys.stdout.isatty() else bare(sys.stdout)
    shown = 0
    for part in parts:
        if form == "table":
            table = as_table(part, None if shown else title)
            if not console.is_terminal:
                unbound = console.options.update(width=1_000_000)
                console.width = max(console.width, console.measure(table, options=unbound).maximum)
            console.print(table)
        else:
            head = f"## {terminal_safe(title)}\n\n" if title and not shown else ""
            stream.write(head + FORMATS[form](part, shown == 0))
        shown += len(part.rows)
    if form == "json":
        stream.write("\n]\n")
    elif form == "md" and title:
        stream.write("\n")
    return shown


def as_table(result: QueryResult, title: str | None = None) -> Table:
    """Returns a part of a result as a table; a text keeps its line breaks, within its cell."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in result.columns:
        table.add_column(Text(terminal_safe(column)))
    for row in result.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    return table


def as_csv(result: QueryResult, first: bool) -> str:
    """Returns a part as CSV; lists and structs as JSON, NULL as an empty cell.

    Args:
        first: Whether it is the first part, which has the header.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if first:
        writer.writerow(result.columns)
    for row in result.rows:
        writer.writerow(_json(v) if isinstance(v, list | dict) else v for v in row)
    return text.getvalue()


def as_json(result: QueryResult, first: bool) -> str:
    """Returns a part of a JSON array with an object per row, on a line of its own."""
    rows = (_json(dict(zip(result.columns, row, strict=True))) for row in result.rows)
    return ("[\n" if first else ",\n") + ",\n".join(rows)


def as_markdown(result: QueryResult, first: bool) -> str:
    """Returns a part of a Markdown table; line breaks in a cell become blanks."""
    cells = tuple(tuple(" ".join(_shown(value).split()) for value in row) for row in result.rows)
    if not first:
        return markdown_rows(cells)
    return markdown_table(result.columns, cells, names=len(result.columns))


FORMATS: dict[str, Callable[[QueryResult, bool], str]] = {
    "csv": as_csv,
    "json": as_json,
    "md": as_markdown,
}


def _json(value: Any) -> str:
    return dump_json(value)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return "" if value is None else terminal_safe_lines(str(value))


def _prompt(console: Terminal, run: Run, connection: duckdb.DuckDBPyConnection) -> None:
    """Reads queries, each until its semicolon, and prints their results, until Ctrl-D."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  (line editing and history for `input`)
    console.print_line(f"views: {', '.join(VIEWS)}. End a query with `;`. Ctrl-D quits.")
    lines: list[str] = []
    while True:
        try:
            lines.append(replace_surrogates(input("   " if lines else "D> ")))
            if not lines[-1].rstrip().endswith(";"):
                continue
            show(console, _interruptible_query(connection, run, "\n".join(lines)), "table")
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print_line("")
        except ConfigError as error:
            console.print_line(f"error: {error}")
        lines = []
