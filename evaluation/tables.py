"""A comparison in print: rich tables for a terminal, Markdown for a file.

Scores and shares are in percent, differences in points; an interval that excludes zero is
marked with a star. Failed questions are among the `n` and count as wrong (`evaluation.comparison`).
"""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from evaluation.comparison import Comparison, Difference, Row, compare
from evaluation.significance import Interval

__all__ = ["compare", "render_markdown", "render_table"]

_NONE = "–"
_ROW_HEAD = (
    "policy", "questions", "n", "failed", "EM", "F1", "cover-EM", "recall", "steps", "searches",
    "valid", "invalid", "forced", "refused",
)  # fmt: skip
_REFUSAL_HEAD = ("refusal precision", "refusal recall")
_DIFFERENCE_HEAD = ("difference", "questions", "n", "EM [95 %]", "F1 [95 %]")
_TEXT_COLUMNS = 2
"""Leading columns that hold names; the others are numbers."""

Cells = tuple[str, ...]


def render_table(comparison: Comparison) -> Group:
    """Both tables for `console.print`. Names are text: markup or escapes in them stay inert."""
    return Group(*(_rich_table(*parts) for parts in _tables(comparison)))


def render_markdown(comparison: Comparison) -> str:
    """Both tables as GitHub Markdown."""
    parts = []
    for title, head, rows in _tables(comparison):
        rule = ["---" if n < _TEXT_COLUMNS else "---:" for n in range(len(head))]
        lines = [_markdown_line(row) for row in (head, tuple(rule), *rows)]
        parts.append(f"**{_printable(title)}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _rich_table(title: str, head: Cells, rows: list[Cells]) -> Table:
    table = Table(title=Text(_printable(title)), title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < _TEXT_COLUMNS else "right")
    for row in rows:
        table.add_row(*(Text(_printable(cell)) for cell in row))
    return table


def _tables(comparison: Comparison) -> list[tuple[str, Cells, list[Cells]]]:
    refusal = any(row.refusal_recall is not None for row in comparison.rows)
    head = _ROW_HEAD + (_REFUSAL_HEAD if refusal else ())
    tables = [("Policies (%)", head, [_row_cells(r, refusal) for r in comparison.rows])]
    if comparison.differences:
        tables.append(
            ("Differences (points)", _DIFFERENCE_HEAD, _difference_rows(comparison.differences))
        )
    return tables


def _row_cells(row: Row, refusal: bool) -> Cells:
    shares = (row.em, row.f1, row.cover_em, row.supporting_recall)
    counts = (row.steps, row.searches, row.valid_searches)
    faults = (row.invalid, row.forced, row.refused)
    cells = (
        row.policy,
        row.stratum,
        str(row.n),
        str(row.failed),
        *(_percent(share) for share in shares),
        *(_NONE if count is None else f"{count:.1f}" for count in counts),
        *(_percent(share) for share in faults),
    )
    if not refusal:
        return cells
    return (*cells, _percent(row.refusal_precision), _percent(row.refusal_recall))


def _difference_rows(differences: Sequence[Difference]) -> list[Cells]:
    """One row a pair of policies and stratum, with its metrics side by side."""
    intervals: dict[tuple[str, str], dict[str, Interval]] = {}
    for d in differences:
        name = f"{d.policy} − {d.baseline}"
        intervals.setdefault((name, d.stratum), {})[d.metric] = d.interval
    return [
        (name, stratum, str(found["em"].n), _points(found["em"]), _points(found["f1"]))
        for (name, stratum), found in intervals.items()
    ]


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f}"


def _points(interval: Interval) -> str:
    mean, low, high = (100 * x for x in (interval.mean, interval.low, interval.high))
    star = " *" if interval.excludes_zero else ""
    return f"{_signed(mean)} [{_signed(low)}, {_signed(high)}]{star}"


def _signed(points: float) -> str:
    rounded = round(points, 1)
    return "0.0" if rounded == 0 else f"{rounded:+.1f}"


def _markdown_line(cells: Cells) -> str:
    return "| " + " | ".join(_printable(c).replace("|", "\\|") for c in cells) + " |"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
