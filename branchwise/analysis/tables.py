"""Renders a comparison: rich tables for a terminal, Markdown for a file.

Scores and shares are in percent, differences in points; an interval that excludes zero is marked
with a star. Failed questions are included in `n` and count as wrong (`analysis.comparison`).

Columns of behaviour that never occurs are left out, such as backtracks, refusals or citations. So
is the protocol if all policies share one. If some questions lack a value, the number of questions
in the mean follows in brackets. Tables that are too wide for a terminal are split.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Group

from branchwise.base import Sheet, number, percent, points

from .comparison import EVERYTHING, Difference, PolicyComparison, PolicyRow
from .significance import Interval

_integer = partial(number, digits=0)
_WIDTH, _NAME_WIDTH = 80, 12
"""Maximum width of a table, and of a column of names, which may be wrapped."""
_TABLES: dict[str, tuple[tuple[str, str, Callable[[float | None], str]], ...]] = {
    "Policies (%)": (
        ("EM", "em", percent),
        ("F1", "f1", percent),
        ("cover-EM", "cover_em", percent),
        ("judge", "judge", percent),
        ("n", "n", _integer),
        ("failed", "failed", _integer),
        ("recall", "supporting_recall", percent),
        ("invalid", "invalid", percent),
        ("forced", "forced", percent),
        ("refused", "refused", percent),
        ("refusal precision", "refusal_precision", percent),
        ("refusal recall", "refusal_recall", percent),
        ("relevance", "relevance", percent),
        ("full", "relevance_full", percent),
        ("all correct", "all_correct", percent),
        ("evaluated", "evaluated", percent),
        ("copied", "copied", percent),
    ),
    "Policies (per question)": (
        ("steps", "steps", number),
        ("searches", "searches", number),
        ("served", "retrievals", number),
        ("valid", "valid_searches", number),
        ("backtracks", "backtracks", number),
        ("corrections", "corrections", number),
        ("forged", "forged", number),
        ("policy tokens", "output_tokens", _integer),
        ("whole turn", "turn_tokens", _integer),
    ),
}
"""Columns of each table: head, mean or attribute of `PolicyRow`, format."""
_RARE = {"failed", "forced", "refused", "backtracks", "corrections", "forged"}
"""Attributes that are left out if they are 0 in all rows."""
_COUNTED = {
    *("judge", "relevance", "relevance_full", "all_correct", "supporting_recall", "evaluated"),
    "copied",
}
"""Means that may cover only some of the questions; then the count follows in brackets."""
Cells = tuple[str, ...]
_DIFFERENCE_HEAD: Cells = ("policies", "questions", "n", "EM [95 %]", "F1 [95 %]")


def render_table(comparison: PolicyComparison, *, by_type: bool = False) -> Group:
    """Returns the tables for `console.print`.

    Args:
        by_type: Also show rows by source, type, hops and guessability, in the first table and in
            that of differences.
    """
    if not by_type:
        comparison = replace(
            comparison,
            rows=tuple(row for row in comparison.rows if row.stratum == EVERYTHING),
            differences=tuple(d for d in comparison.differences if d.stratum == EVERYTHING),
        )
    return Group(*(sheet.text() for sheet in _sheets(comparison, is_brief=True)))


def render_markdown(comparison: PolicyComparison) -> str:
    """Returns all tables as GitHub Markdown."""
    return "\n".join(sheet.markdown() for sheet in _sheets(comparison))


def interval(difference: Interval) -> str:
    """Returns mean and bounds in points, with a star if 0 is outside."""
    star = " *" if difference.excludes_zero else ""
    return f"{points(difference.mean)} [{points(difference.low)}, {points(difference.high)}]{star}"


def _sheets(comparison: PolicyComparison, *, is_brief: bool = False) -> list[Sheet]:
    rows = comparison.rows
    overall = [row for row in rows if row.stratum == EVERYTHING]
    has_strata = not is_brief or len(overall) < len(rows)
    sheets = [sheet for title in _TABLES for sheet in _policy_sheets(title, rows, has_strata)]
    protocols = [row.protocol or "" for row in rows]
    if len(set(protocols) - {""}) > 1:
        sheets[-1] = sheets[-1].with_column("protocol", protocols)
    if is_brief:
        sheets[1:] = [replace(sheet, rows=sheet.rows[: len(overall)]) for sheet in sheets[1:]]
    broken = [(row.policy, rule, percent(n)) for row in overall for rule, n in row.broken.items()]
    if broken:
        head = ("policy", "broken rule", "replies")
        sheets.append(Sheet("Format (%)", head, tuple(broken), names=2))
    if comparison.differences:
        cells, names = (_DIFFERENCE_HEAD, *_difference_rows(comparison.differences)), 2
        if not has_strata:
            cells, names = tuple((row[0], *row[2:]) for row in cells), 1
        sheets.append(Sheet("Differences (points)", cells[0], cells[1:], names))
    return sheets


def _policy_sheets(title: str, rows: Sequence[PolicyRow], has_strata: bool) -> Iterator[Sheet]:
    """Yields one of `_TABLES` in narrow parts, without empty columns."""
    names = {"policy": [row.policy for row in rows]}
    if has_strata:
        names["questions"] = [row.stratum for row in rows]
    start = 1 + sum(min(_width(*column), _NAME_WIDTH + 3) for column in names.items())
    part, width = dict(names), start
    for head, name, form in _TABLES[title]:
        values = [row.means[name] if name in row.means else getattr(row, name) for row in rows]
        if all(value is None for value in values) or (name in _RARE and not any(values)):
            continue
        cells = [form(value) + _count(row, name) for row, value in zip(rows, values, strict=True)]
        if part != names and width + _width(head, cells) > _WIDTH:
            yield _sheet(title, part, len(names))
            part, width = dict(names), start
        part[head] = cells
        width += _width(head, cells)
    yield _sheet(title, part, len(names))


def _width(head: str, cells: Sequence[str]) -> int:
    return 3 + max(map(len, (head, *cells)))


def _sheet(title: str, columns: Mapping[str, Sequence[str]], names: int) -> Sheet:
    return Sheet(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), names)


def _count(row: PolicyRow, name: str) -> str:
    count = row.counts.get(name, 0)
    is_part = name in _COUNTED and 0 < count < row.n - (0 if name == "judge" else row.failed)
    return f" ({count})" if is_part else ""


def _difference_rows(differences: Sequence[Difference]) -> tuple[Cells, ...]:
    """Returns one row per pair of policies and stratum, with its metrics side by side."""
    intervals: dict[tuple[str, str], dict[str, Interval]] = {}
    for d in differences:
        name = f"{d.policy} − {d.baseline}"
        intervals.setdefault((name, d.stratum), {})[d.metric] = d.interval
    return tuple(
        (name, stratum, str(metrics["em"].n), interval(metrics["em"]), interval(metrics["f1"]))
        for (name, stratum), metrics in intervals.items()
    )
