"""Text from outside, made inert: a person sees every character, and no terminal acts on one.

Model replies, names that a server gives, questions, paths and error messages may hold whatever a
stranger wrote. Sent to a terminal as they are, they could clear the screen, set its title, link
otherwise, turn the direction of what follows, or begin a line that looks like one of ours. Here
they are spelled out as Python would spell them: an escape character becomes `\\x1b`.

    a field of a message, a cell of a table   `inert`: one line, whatever it holds
    a message built of lines                  `inert_lines`: line breaks stay, all else as above
    what others print                         `guard_streams`: stdout and stderr, from then on

What is spelled out is what Python calls not printable: control characters (C0, DEL and C1),
marks of direction, other invisible marks, separators of lines and paragraphs, lone surrogates,
private and unassigned characters. Two marks stay as they are, since words of many languages and
most emoji are written with them, and they only join or part their neighbours: U+200C and U+200D.
So do the blanks of other widths, such as U+00A0.
"""

import io
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

_JOINERS = "\u200c\u200d"


def inert(text: str) -> str:
    """`text` on one line, with every character spelled out that a terminal might act on."""
    return _spelled(text, _as_python) if not text.isprintable() else text


def inert_lines(text: str) -> str:
    """`text` with its line breaks (`\\n` alone), and each of its lines inert."""
    return text if text.isprintable() else "\n".join(map(inert, text.split("\n")))


def one_line(text: str) -> str:
    """`text` inert, with a single blank for every run of white space."""
    return inert(" ".join(text.split()))


def inert_json(text: str) -> str:
    r"""Returns JSON that means the same, and may be shown: its strings hold `\u` escapes
    instead.
    """
    # JSON knows one line break outside strings, and none inside them.
    return "\n".join(
        line if line.isprintable() else _spelled(line, _as_json) for line in text.split("\n")
    )


def inert_yaml(value: Any) -> str:
    """`value` as YAML in the order given; all in ASCII where a terminal might act on it."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if text == inert_lines(text):
        return text
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False)


def _spelled(text: str, spell: Callable[[str], str]) -> str:
    return "".join(c if c.isprintable() or _is_harmless(c) else spell(c) for c in text)


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) == "Zs"


def _as_python(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _as_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class InertStream:
    """A text stream to which only inert lines are written; in all else the stream itself.

    Attributes:
        inner: the stream, for a writer that styles what it has made inert itself.
    """

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        """Writes `text` escaped; returns the length of the original."""
        self.inner.write(inert_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes every line inert."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def guard_streams() -> None:
    """Escapes everything that this process prints to a terminal from now on.

    Whoever prints: `print`, argparse, warnings, the log, a library, the traceback of an error that
    no one foresaw. Characters that the terminal's encoding lacks are spelled out, too, so that
    none of them ends a stage. What a library writes past Python's streams, to the descriptors
    themselves, is not seen here.
    """
    # Python would colour its own tracebacks and usage, which the streams could not tell from text.
    os.environ["PYTHON_COLORS"] = "0"
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, InertStream):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, InertStream(stream))


def bare(stream: TextIO) -> TextIO:
    """Returns the stream under a guarded one; any other stream itself."""
    return cast(InertStream, stream).inner if isinstance(stream, InertStream) else stream
