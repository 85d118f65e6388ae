"""A table of text cells that a terminal, a Markdown file and a spreadsheet can show."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from .terminal_escape import terminal_safe

NONE = "–"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Sheet:
    """Rows under a head.

    Attributes:
        rows: Rows of cells, one per column of `head`.
        names: Number of leading columns that hold names; the others are numbers.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1

    def with_column(self, name: str, cells: Sequence[str]) -> "Sheet":
        """Returns the table with one more column on the right; unchanged if its cells are all
        empty.
        """
        if not any(cells):
            return self
        rows = tuple((*row, cell or NONE) for row, cell in zip(self.rows, cells, strict=True))
        return Sheet(self.title, (*self.head, name), rows, self.names)

    def text(self) -> Table:
        """Returns a table for `console.print`. Markup and escapes in cells stay text."""
        table = Table(title=Text(terminal_safe(self.title)), title_justify="left")
        for number, name in enumerate(self.head):
            # Wrap names instead of numbers, which must stay on one line.
            if number < self.names:
                table.add_column(Text(terminal_safe(name)), overflow="fold")
            else:
                table.add_column(Text(terminal_safe(name)), justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(terminal_safe(cell)) for cell in row))
        return table

    def markdown(self) -> str:
        """Returns the table as GitHub Markdown."""
        return f"**{terminal_safe(self.title)}**\n\n" + markdown_table(
            self.head, self.rows, self.names
        )

    def csv(self) -> str:
        """Returns comma-separated text with the head, without the title."""
        written = io.StringIO()
        lines = [[terminal_safe(cell) for cell in row] for row in (self.head, *self.rows)]
        csv.writer(written, lineterminator="\n").writerows(lines)
        return written.getvalue()


def percent(share: float | None) -> str:
    """Returns a share in [0, 1] in per cent."""
    return NONE if share is None else f"{100 * share:.1f}"


def points(difference: float) -> str:
    """Returns a signed difference of shares in points; "0.0" without a sign if it rounds to 0."""
    rounded = round(100 * difference, 1)
    return "0.0" if rounded == 0 else f"{rounded:+.1f}"


def number(value: float | None, digits: int = 1) -> str:
    """Returns a number with `digits` digits after the decimal point."""
    return NONE if value is None else f"{value:.{digits}f}"


def markdown_cell(text: str) -> str:
    """Returns `text` as a cell of a Markdown table: on one line, and within its column."""
    return terminal_safe(text).replace("|", "\\|")


def markdown_table(head: tuple[str, ...], rows: tuple[tuple[str, ...], ...], names: int = 1) -> str:
    """Returns rows under a head as GitHub Markdown; all but the first columns are numbers."""
    rule = tuple("---" if n < names else "---:" for n in range(len(head)))
    return markdown_rows((head, rule, *rows))


def markdown_rows(rows: Iterable[Iterable[str]]) -> str:
    """Returns rows of a GitHub Markdown table."""
    return "".join(f"| {' | '.join(map(markdown_cell, row))} |\n" for row in rows)
