"""Checks how modules import the rooms of `branchwise`. Run by `make lint`.

- Nobody imports a room under its bare name (`import mcts`): it would be loaded twice.
- Product code imports another room through its face (`from branchwise.rewards import Spre`), and
  its own room with relative imports. `pipelines/` and `cli/` have no face.

Prints `file:line: problem` for each hit and exits with 1 if there is one.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LINKED = ("annotation", "mcts", "pipelines", "studies", "training")
WITHOUT_FACE = ("cli", "pipelines", "studies")


def problems(root: Path) -> Iterator[str]:
    """Yields the hits in all tracked modules."""
    package = root / "branchwise"
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "*.py"], check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split():
        parts = Path(name).parts
        room_parts = parts[1:] if parts[0] == "branchwise" else parts
        product = parts[0] == "branchwise" or parts[0] in LINKED
        room = room_parts[0] if product and len(room_parts) > 1 else None
        for node in ast.walk(ast.parse((root / name).read_text(encoding="utf-8"))):
            for problem in _problems_of(node, rooms, room, len(room_parts) - 1, product=product):
                yield f"{name}:{node.lineno}: {problem}"  # type: ignore[attr-defined]


def _problems_of(
    node: ast.AST, rooms: set[str], room: str | None, depth: int, *, product: bool
) -> Iterator[str]:
    """Yields the problems of a node in a module that is `depth` folders below the package."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level:
        if room and node.level > depth:
            yield "a relative import leaves its room"
        return
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
    else:
        return
    for module in modules:
        top, *inner = module.split(".")
        if top in rooms:
            yield f"import branchwise.{top}, not {top}"
        if not product or top != "branchwise" or not inner:
            continue
        if inner[0] == room:
            yield f"{module}: import the own room with a relative import"
        elif len(inner) > 1 and inner[0] not in WITHOUT_FACE:
            yield f"{module}: import another room through branchwise.{inner[0]}"


def main(root: Path) -> int:
    """Prints the hits below `root`. Returns 1 if there is one, else 0."""
    hits = list(problems(root))
    print("\n".join(hits) or "imports: no hits")
    return min(len(hits), 1)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
