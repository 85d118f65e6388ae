"""The console of every stage: it escapes markup and control characters in all output."""

import io
import json
import sys
from types import ModuleType

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from branchwise.cli.command_line import json_line
from branchwise.runs.terminal import Terminal

ESCAPE = "\x1b[2J\x9b31m\u202e\x85[bold]:smile:[/]"
SHOWN = r"\x1b[2J\x9b31m\u202e\x85[bold]:smile:[/]"


def printed(*things: object) -> str:
    file = io.StringIO()
    Terminal(file).print(*things)
    return file.getvalue()


def a_table(cell: Text | str) -> Table:
    table = Table(title=cell, caption=cell)
    table.add_column(cell, footer=cell)
    table.add_row(cell)
    table.add_row(Panel(cell))
    return table


@pytest.mark.parametrize("as_text", [True, False])
def test_markup_and_control_characters_are_escaped_in_everything_printed(as_text: bool) -> None:
    text = Text(ESCAPE) if as_text else ESCAPE
    panel = Panel(text, title=text, subtitle=text)
    for thing in (text, a_table(text), panel, [ESCAPE], {ESCAPE: ESCAPE}, ValueError(ESCAPE)):
        said = printed(thing)
        assert said.replace("\n", "").isprintable(), said
        assert "[2J" in said
    assert SHOWN in printed(text)


def test_links_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    file = io.StringIO()
    console = Terminal(file)
    console.print(Panel("x", title="[link=http://evil/]there"), Text("here", "link http://evil/"))
    said = file.getvalue()
    assert console.is_terminal
    assert "there" in said
    assert "here" in said
    assert "evil" not in said


def test_column_widths_are_those_of_the_escaped_text() -> None:
    lines = printed(a_table(ESCAPE)).splitlines()
    assert all(SHOWN in line for line in lines if "[2J" in line), "no cell should be truncated"
    boxes = [line.rstrip() for line in lines if line[0] in "┏┃│└"]
    assert len({len(line) for line in boxes}) == 1


def test_continuation_lines_of_a_message_are_indented() -> None:
    file = io.StringIO()
    Terminal(file).print_line("error: no file a\nwrote all of it\n  indented\n\rb" + "x" * 300)
    said = file.getvalue().splitlines()
    assert said[:3] == ["error: no file a", "  wrote all of it", "  indented"]
    assert said[3:] == ["  \\rb" + "x" * 300], "a long line should not be truncated"


def test_json_totals_are_one_line_of_printable_ascii() -> None:
    line = json_line({"\x7f\x1b": "日\n\u202e\x85"})
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {"\x7f\x1b": "日\n\u202e\x85"}


def test_a_notebook_gets_plain_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    console = Terminal()
    assert not console.is_terminal
    console.print(a_table(Text("cell", style="bold red")))
    console.print_line("line")
    printed_text = capsys.readouterr().out
    assert "cell" in printed_text and printed_text.endswith("line\n")
    assert "\x1b" not in printed_text
