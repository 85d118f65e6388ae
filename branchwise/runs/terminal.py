"""The console that every stage prints through; it makes control sequences in texts inert.

Rich styles text with escape sequences, so its finished output cannot be escaped. `Terminal` escapes
earlier, while text and style are separate: each string before its width is measured, and each
segment before it is printed. Markup, emoji codes and highlighting are off, so a bracket in a
question is a bracket.
"""

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from branchwise.base import bare, terminal_safe_lines

PIPED_WIDTH = 200
"""Columns without a terminal: a narrower table would lose data in a file or a pipe."""


class Terminal(Console):
    """Console with inert text; see the module."""

    def __init__(self, file: IO[str] | None = None, *, stderr: bool = False) -> None:
        """Prints to `file`; without one, to standard output or standard error."""
        stream = file or bare(sys.stderr if stderr else sys.stdout)
        # Notebooks set FORCE_COLOR, and Rich would print a box of HTML per line there.
        is_terminal = False if "ipykernel" in sys.modules else None
        super().__init__(
            file=stream,
            markup=False,
            emoji=False,
            highlight=False,
            force_terminal=is_terminal,
            force_jupyter=False,
        )
        if not self.is_terminal:
            self.width = PIPED_WIDTH

    def print_line(self, text: str) -> None:
        """Prints a message unchanged, except that its later lines are indented.

        So a line at the margin always begins a message, and data inside a message cannot imitate
        one.
        """
        first, *further_lines = text.split("\n")
        indented = (line if line[:1] in {"", " "} else f"  {line}" for line in further_lines)
        self.print("\n".join((first, *indented)), soft_wrap=True)

    def render_str(self, text: str, **how: Any) -> Text:
        """Returns a string as text that is measured as it will be shown."""
        return super().render_str(terminal_safe_lines(text), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields segments with inert text and without links; control codes are Rich's own."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if style and style.link:
                style = style.update_link(None)
            yield segment if control else Segment(terminal_safe_lines(text), style)
