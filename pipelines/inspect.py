"""`make inspect`: DuckDB on a run.

    make inspect RUN=datasets/atlas
    make inspect RUN=datasets/atlas SQL="select action, count(*) from trees group by 1"
    make -s inspect RUN=datasets/atlas SQL="select * from pairs" ARGS="--format csv" > pairs.csv

The views have the names and columns of the tables (docs/tables.md) and show the parts in the
manifest. `--label` shows the trees and pairs of a relabelling. Without `SQL`, prints the statistics
of ReasonRAG's table 1, then reads queries if it runs in a terminal.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

from rich.table import Table
from rich.text import Text

from analysis.table import markdown_table
from base.errors import ConfigError
from base.terminal_escape import bare, inert, inert_lines
from base.text import replace_surrogates
from runs.annotation.stored_trees import check_relabelling
from runs.folder import Run, existing_run
from runs.stage import Label, StageContext, StageResult
from runs.terminal import Terminal
from storage.views import VIEWS, QueryResult, canned_queries, connect, query, run_sql


def inspect(
    context: StageContext,
    format: Annotated[Literal["table", "csv", "json", "md"], "of the result"] = "table",
    label: Label = None,
) -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    check_relabelling(run, label)
    sql = replace_surrogates(os.environ.get("SQL", "")).strip()
    if sql:
        result = run_sql(run.folder, sql, label)
        show(context.console, result, format)
        return StageResult({"rows": len(result.rows)})
    if format in {"csv", "json"}:
        raise ConfigError(f'--format {format}: needs a query, as in SQL="select * from pairs"')
    for title, canned in canned_queries():
        show(context.console, run_sql(run.folder, canned, label), format, title)
    if context.console.is_terminal and sys.stdin.isatty():
        _prompt(context.console, run, label)
    return StageResult({"run": str(run.folder)})


def show(console: Terminal, result: QueryResult, form: str, title: str | None = None) -> None:
    """Prints a result as `table`, `csv`, `json` or `md`.

    In a file or a pipe, a table is as wide as its content, and the other formats hold the stored
    text; on a terminal, all text is escaped.
    """
    if form == "table":
        table = as_table(result, title)
        if not console.is_terminal:
            unbound = console.options.update(width=1_000_000)
            console.width = max(console.width, console.measure(table, options=unbound).maximum)
        console.print(table)
        return
    text = FORMATS[form](result)
    stream = sys.stdout if sys.stdout.isatty() else bare(sys.stdout)
    stream.write(f"## {inert(title)}\n\n{text}\n" if title else text)


def as_table(result: QueryResult, title: str | None = None) -> Table:
    """Returns a result as a table; a text keeps its line breaks, within its cell."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in result.columns:
        table.add_column(Text(inert(column)))
    for row in result.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    return table


def as_csv(result: QueryResult) -> str:
    """Returns a result as CSV with a header; lists and structs as JSON, NULL as an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    for row in result.rows:
        writer.writerow(_json(v) if isinstance(v, list | dict) else v for v in row)
    return text.getvalue()


def as_json(result: QueryResult) -> str:
    """Returns a result as a JSON array with an object per row, on a line of its own."""
    rows = (_json(dict(zip(result.columns, row, strict=True))) for row in result.rows)
    return "[\n" + ",\n".join(rows) + "\n]\n"


def as_markdown(result: QueryResult) -> str:
    """Returns a result as a Markdown table; line breaks in a cell become blanks."""
    cells = (tuple(" ".join(_shown(value).split()) for value in row) for row in result.rows)
    return markdown_table(result.columns, tuple(cells), names=len(result.columns))


FORMATS: dict[str, Callable[[QueryResult], str]] = {
    "csv": as_csv,
    "json": as_json,
    "md": as_markdown,
}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return "" if value is None else inert_lines(str(value))


def _prompt(console: Terminal, run: Run, label: str | None) -> None:
    """Reads queries, each until its semicolon, and prints their results, until Ctrl-D."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  (line editing and history for `input`)
    console.print_line(f"views: {', '.join(VIEWS)}. End a query with `;`. Ctrl-D quits.")
    with connect(run.folder, label) as connection:
        lines: list[str] = []
        while True:
            try:
                lines.append(replace_surrogates(input("   " if lines else "D> ")))
                if not lines[-1].rstrip().endswith(";"):
                    continue
                console.print(as_table(query(connection, run.folder, "\n".join(lines))))
            except EOFError:
                return
            except KeyboardInterrupt:
                console.print_line("")
            except ConfigError as error:
                console.print_line(f"error: {error}")
            lines = []
