"""Checks text for four habits that make English hard to read.

Looks at docstrings, comments, messages and Markdown.
Run by `make lint`. Prints `file:line: habit: text` for each hit and exits with 1 if there is one.
docs/contributing.md shows how to rewrite them.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

_COUNTED = (
    "rows?|calls?|tokens?|rollouts?|pairs?|steps?|words?|examples?|draws?|questions?|passages?|"
    "lines?|files?|tables?|columns?|panels?|plots?|one|once|seconds?|ms|MB|GB|KiB|nats"
)
_PER = (
    "row|line|step|question|node|state|side|policy|call|seed|stage|process|run|pair|trace|set|"
    "head|arm|reward|metric|setting|split|file|word|token|tree|batch|training|prompt|sequence"
)

HABITS = {
    "description without a subject": r"^[a-z_0-9]+(, [a-z_0-9]+)*: (of|that|whose|in|by|from|under|"
    r"behind|beside|likewise|its|theirs|those|these)\b",
    "null for None": r"\b[Nn]ull\b",
    "a for per": rf"\b({_COUNTED}) an? ({_PER})\b(?! (was|may|grows|exits))",
    "verb before subject": r"(^|[.;:] )(Beside|Behind|Under|Among|Between|At|On|In|By|With) "
    r"[^,.;:]{3,60} (is|are|was|were|stands?|lies?|comes?) (a|an|the|no|what|its|their)\b",
}
"""A name for each habit, and the pattern that finds it."""

_WHERE = {"description without a subject": {"docstring"}, "null for None": {"docstring"}}
"""Kinds of text that a habit is looked for in, if not in all."""


def prose(root: Path) -> Iterator[tuple[str, int, str, str]]:
    """Yields file, line, kind (docstring, comment, message, page) and text, line by line."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "*.py", "*.md"],
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split():
        if name.startswith(("tests/", "models/", "docs/results/", ".ci/")):
            continue
        text = (root / name).read_text(encoding="utf-8")
        yield from _of_page(name, text) if name.endswith(".md") else _of_module(name, text)


def _of_module(name: str, source: str) -> Iterator[tuple[str, int, str, str]]:
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                docstrings.add(node.lineno)
                for number, line in enumerate(text.splitlines()):
                    yield name, node.lineno + number, "docstring", line.strip()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        number = token.start[0]
        if token.type == tokenize.COMMENT:
            yield name, number, "comment", token.string.lstrip("# ")
        elif token.type == tokenize.STRING and number not in docstrings:
            yield name, number, "message", token.string.strip("frb\"'")


def _of_page(name: str, page: str) -> Iterator[tuple[str, int, str, str]]:
    code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield name, number, "page", re.sub(r"`[^`]*`", "``", line).strip()


def main(root: Path) -> int:
    """Prints the hits below `root`. Returns 1 if there is one, else 0."""
    hits = [
        f"{name}:{number}: {habit}: {text}"
        for name, number, kind, text in prose(root)
        for habit, pattern in HABITS.items()
        if kind in _WHERE.get(habit, {kind}) and re.search(pattern, text)
    ]
    print("\n".join(hits) or "prose: no hits")
    return min(len(hits), 1)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
