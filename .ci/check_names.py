"""Checks that names say what they hold: `hits` or `policy`, not `found` or `one`.

Counts the vague names among parameters, variables, fields of classes, targets of loops and
comprehensions, and names after `as`, by room and without tests. A few may be the best choice, so a
room passes with up to 1 %. Run by `make lint`. Prints `file:line: name` for each vague name of a
room with more, and exits with 1 if there is one.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_WORDS = """
    again anything asked about by done drawn dummy elem everything foo found given got here how into
    kept known left made misc named obj of one other others own rest ret said seen something stuff
    taken temp that them there thing things this tmp told wanted what when where which who whole why
"""
VAGUE = frozenset(_WORDS.split())
"""Names that could hold anything. An underscore before or after them does not help."""

MAX_SHARE = 0.01
"""Share of vague names with which a room passes."""


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and name of whatever a module binds; a name that is bound again counts again."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str() as name) | ast.MatchStar(name=str() as name):
                yield node.lineno, name
            case ast.MatchAs(name=str() as name) | ast.MatchMapping(rest=str() as name):
                yield node.lineno, name


def room_of(name: str) -> str:
    """Returns the room of a tracked file, such as `branchwise/runs` or `mcts`."""
    top, *inner = Path(name).parts[:-1] or (".",)
    return "/".join((top, *inner[:1])) if top == "branchwise" else top


def hits(root: Path) -> Iterator[str]:
    """Yields the vague names of the rooms that have too many."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "*.py"], check=True, capture_output=True, text=True
    )
    names = defaultdict[str, int](int)
    vague = defaultdict[str, list[tuple[str, int, str]]](list)
    for file in listed.stdout.split():
        if file.startswith("tests/"):
            continue
        room = room_of(file)
        for line, name in bindings(ast.parse((root / file).read_text(encoding="utf-8"))):
            names[room] += 1
            if name.strip("_") in VAGUE:
                vague[room].append((file, line, name))
    for room, places in sorted(vague.items()):
        if len(places) > MAX_SHARE * names[room]:
            yield f"{room}: {len(places)} of {names[room]} names are vague"
            yield from (f"{file}:{line}: {name}" for file, line, name in sorted(places))


def main(root: Path) -> int:
    """Prints the hits below `root`. Returns 1 if there is one, else 0."""
    lines = list(hits(root))
    print("\n".join(lines) or "names: no hits")
    return min(len(lines), 1)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
