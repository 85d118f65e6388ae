"""`make inspect`: DuckDB on a run.

    make inspect RUN=datasets/atlas
    make inspect RUN=datasets/atlas SQL="select action, count(*) from nodes group by 1"

Views `pairs`, `nodes`, `questions` and `failures` read the parts that the manifest names. Without
`SQL`, prints the statistics of ReasonRAG's table 1 for this run.
"""

import os

from rich.table import Table
from rich.text import Text

from runs.folder import existing_run
from runs.stage import StageContext, StageResult
from storage.terminal_escape import inert, inert_lines
from storage.text import storable
from storage.views import QueryResult, canned_queries, run_sql


def inspect(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    asked = storable(os.environ.get("SQL", "")).strip()
    if asked:
        result = run_sql(run.folder, asked)
        context.console.print(as_table(result))
        return StageResult({"rows": len(result.rows)})
    for title, sql in canned_queries():
        context.console.print(as_table(run_sql(run.folder, sql), title))
    return StageResult({"run": str(run.folder)})


def as_table(result: QueryResult, title: str | None = None) -> Table:
    """Returns a result as a table; a text keeps its line breaks, within its cell."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in result.columns:
        table.add_column(Text(inert(column)))
    for row in result.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    return table


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return "" if value is None else inert_lines(str(value))
