"""A comparison in print: rich tables for a terminal, Markdown for a file.

Scores and shares are in percent, differences in points; an interval that excludes zero is
marked with a star. Failed questions are among the `n` and count as wrong (`analysis.comparison`).
What nobody did or could do has no columns: taking searches back, refusing the unanswerable. Nor
has the protocol, if all policies share one.
"""

from collections.abc import Sequence

from rich.console import Group

from analysis.comparison import Difference, PolicyComparison, PolicyRow, compare
from analysis.sheet import Sheet, number, percent, points
from analysis.significance import Interval

__all__ = ["compare", "interval", "render_markdown", "render_table"]

_ROW_HEAD = (
    "policy", "questions", "n", "failed", "EM", "F1", "cover-EM", "recall", "steps", "searches",
    "valid", "invalid", "forced", "refused",
)  # fmt: skip
_BACKTRACK_HEAD = ("backtracks",)
_REFUSAL_HEAD = ("refusal precision", "refusal recall")
_DIFFERENCE_HEAD = ("difference", "questions", "n", "EM [95 %]", "F1 [95 %]")
_NAMES = 2
"""Leading columns that hold names."""

Cells = tuple[str, ...]


def render_table(comparison: PolicyComparison) -> Group:
    """Both tables for `console.print`."""
    return Group(*(sheet.text() for sheet in _sheets(comparison)))


def render_markdown(comparison: PolicyComparison) -> str:
    """Both tables as GitHub Markdown."""
    return "\n".join(sheet.markdown() for sheet in _sheets(comparison))


def interval(of: Interval) -> str:
    """Mean and bounds in points; a star where 0 is outside."""
    star = " *" if of.excludes_zero else ""
    return f"{points(of.mean)} [{points(of.low)}, {points(of.high)}]{star}"


def _sheets(comparison: PolicyComparison) -> list[Sheet]:
    backtracks = any(row.backtracks for row in comparison.rows)
    refusal = any(row.refusal_recall is not None for row in comparison.rows)
    head = _ROW_HEAD + _BACKTRACK_HEAD * backtracks + _REFUSAL_HEAD * refusal
    rows = tuple(
        _row_cells(row)
        + (number(row.backtracks),) * backtracks
        + (percent(row.refusal_precision), percent(row.refusal_recall)) * refusal
        for row in comparison.rows
    )
    protocols = [row.protocol or "" for row in comparison.rows]
    differ = len(set(protocols) - {""}) > 1
    sheet = Sheet("Policies (%)", head, rows, _NAMES)
    sheets = [sheet.with_column("protocol", protocols) if differ else sheet]
    if comparison.differences:
        rows = _difference_rows(comparison.differences)
        sheets.append(Sheet("Differences (points)", _DIFFERENCE_HEAD, rows, _NAMES))
    return sheets


def _row_cells(row: PolicyRow) -> Cells:
    shares = (row.em, row.f1, row.cover_em, row.supporting_recall)
    counts = (row.steps, row.searches, row.valid_searches)
    faults = (row.invalid, row.forced, row.refused)
    return (
        row.policy,
        row.stratum,
        str(row.n),
        str(row.failed),
        *(percent(share) for share in shares),
        *(number(count) for count in counts),
        *(percent(share) for share in faults),
    )


def _difference_rows(differences: Sequence[Difference]) -> tuple[Cells, ...]:
    """One row a pair of policies and stratum, with its metrics side by side."""
    intervals: dict[tuple[str, str], dict[str, Interval]] = {}
    for d in differences:
        name = f"{d.policy} − {d.baseline}"
        intervals.setdefault((name, d.stratum), {})[d.metric] = d.interval
    return tuple(
        (name, stratum, str(found["em"].n), interval(found["em"]), interval(found["f1"]))
        for (name, stratum), found in intervals.items()
    )
