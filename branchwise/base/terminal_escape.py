"""Escapes text from outside: a person sees every character, and no terminal acts on one.

Model replies, names from a server, questions, paths and error messages may hold text by a stranger.
Unescaped, it could clear the screen, set the terminal's title, fake links, reverse the direction of
other text, or imitate one of our lines. Such characters are escaped as in Python: an escape
character becomes `\\x1b`.

    a field of a message, a cell of a table   `terminal_safe`: always one line
    a message of several lines                `terminal_safe_lines`: keeps line breaks
    output of other code                      `guard_streams`: stdout and stderr, from then on

All characters that Python calls not printable are escaped: control characters (C0, DEL and C1),
direction marks, other invisible marks, separators of lines and paragraphs, lone surrogates, private
and unassigned characters. U+200C and U+200D stay, because many languages and most emoji need them,
and they only join or separate their neighbours. Blanks of other widths, such as U+00A0, stay as
well.
"""

import io
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

_JOINERS = "\u200c\u200d"


def terminal_safe(text: str) -> str:
    """Returns `text` on one line; escapes every character that a terminal might act on."""
    return _spelled(text, _as_python) if not text.isprintable() else text


def terminal_safe_lines(text: str) -> str:
    """Returns `text` with its line breaks (`\\n` only) and each of its lines escaped."""
    return text if text.isprintable() else "\n".join(map(terminal_safe, text.split("\n")))


def one_line(text: str) -> str:
    """Returns `text` escaped, with one blank for every run of white space."""
    return terminal_safe(" ".join(text.split()))


def terminal_safe_json(text: str) -> str:
    r"""Returns equivalent JSON that is safe to print: its strings hold `\u` escapes instead."""
    # JSON knows one line break outside strings, and none inside them.
    return "\n".join(
        line if line.isprintable() else _spelled(line, _as_json) for line in text.split("\n")
    )


def terminal_safe_yaml(value: Any) -> str:
    """Returns `value` as YAML in the given order; in ASCII if a terminal might act on it."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if text == terminal_safe_lines(text):
        return text
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False)


def _spelled(text: str, spell: Callable[[str], str]) -> str:
    def is_harmless(c: str) -> bool:
        return c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs"

    return "".join(c if is_harmless(c) else spell(c) for c in text)


def _as_python(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _as_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class TerminalSafeStream:
    """A text stream that escapes the lines written to it; otherwise like the inner stream.

    Attributes:
        inner: Unescaped stream, for a writer that styles text after escaping it.
    """

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        """Writes `text` escaped; returns the length of the original."""
        self.inner.write(terminal_safe_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes every line escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def guard_streams() -> None:
    """Escapes everything that this process prints to a terminal from now on.

    This includes `print`, argparse, warnings, the log, libraries and tracebacks of unexpected
    errors. Characters that the terminal's encoding lacks are also escaped, so that none of them
    ends a stage. Text that a library writes directly to the file descriptors is not escaped.
    """
    # Without this, the streams would escape Python's own colours in tracebacks and usage.
    os.environ["PYTHON_COLORS"] = "0"
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalSafeStream):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, TerminalSafeStream(stream))


def bare(stream: TextIO) -> TextIO:
    """Returns the stream inside a guarded one; returns any other stream unchanged."""
    return (
        cast(TerminalSafeStream, stream).inner if isinstance(stream, TerminalSafeStream) else stream
    )
