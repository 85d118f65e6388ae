"""A tree, a step or a pair as text for a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_WIDE = 100
"""Minimum width, in columns, to show the two sides of a pair next to each other."""

Row = Mapping[str, Any]


def tree_text(question: Row, nodes: Sequence[Row], pairs: Sequence[Row], width: int) -> Group:
    """Returns a tree with one line per step: number, action, content, marks, reward, visits."""
    children: dict[int, list[Row]] = {}
    for node in nodes[1:]:
        children.setdefault(node["parent_id"], []).append(node)
    chosen = {pair["chosen_node"] for pair in pairs}
    rejected = {pair["rejected_node"] for pair in pairs}
    table = Table(box=None, padding=(0, 1, 0, 0), width=width, header_style="bold")
    table.add_column(Text(question["question"]), no_wrap=True, overflow="ellipsis", ratio=1)
    # A column of its own, because long contents are cut at the right edge.
    table.add_column("marks", no_wrap=True)
    for name in ("reward", "visits"):
        table.add_column(name, justify="right", no_wrap=True)
    for prefix, node in _walk(children, 0, ""):
        line = Text(f"{prefix}{node['node_id']:>3}  {node['action']:<9} ", style="dim")
        line.append(" ".join(str(node["content"]).split()), style="default not dim")
        marks = []
        if node["node_id"] in chosen:
            marks.append(Text("✓ chosen", style="green"))
        if node["node_id"] in rejected:
            marks.append(Text("✗ rejected", style="red"))
        if node["terminal"] and node["em"] is not None:
            marks.append(Text("right" if node["em"] else "wrong"))
        table.add_row(line, Text(" ").join(marks), _number(node["reward"]), str(node["visits"]))
    gold = " | ".join(question["answers"]) or "none (unanswerable)"
    return Group(Text(f"Gold answer: {gold}"), Text(""), table)


def _walk(
    children: Mapping[int, Sequence[Row]], parent: int, prefix: str
) -> Iterator[tuple[str, Row]]:
    """Yields the nodes below `parent` depth first, each with its branch lines as a prefix."""
    siblings = children.get(parent, ())
    for place, node in enumerate(siblings):
        last = place == len(siblings) - 1
        yield prefix + ("└─" if last else "├─"), node
        yield from _walk(children, node["node_id"], prefix + ("  " if last else "│ "))


def node_text(node: Row, passages: Mapping[str, str], pairs: Sequence[Row]) -> Group:
    """Returns all stored facts about a step."""
    parts: list[RenderableType] = [
        Text(f"step {node['node_id']}: {node['action']}", style="bold"),
        Text(str(node["text"])),
        Text(
            f"\nreward {_number(node['reward'])}   Q {_number(node['value'])}   "
            f"N {node['visits']}   outcomes {node['n_outcomes']}   iteration {node['iteration']}"
        ),
    ]
    for passage in node["passages"] or ():
        parts.append(
            Text(f"\n{passage['title']} (score {_number(passage['score'])})", style="bold")
        )
        parts.append(Padding(Text(passages.get(passage["id"], "not in the corpus")), (0, 0, 0, 2)))
    if node["rollouts"]:
        parts += [Text("\nrollouts", style="bold"), _rollouts(node["rollouts"])]
    if node["reasoning"]:
        parts += [Text("\nreasoning", "bold"), Text(node["reasoning"])]
    if node["judge_text"]:
        parts += [Text(f"\njudge, score {_number(node['judge_score'])}", style="bold")]
        parts += [Text(node["judge_text"])]
    if node["components"]:
        parts += [Text("\nreward components", style="bold"), _components(node["components"])]
    for pair in pairs:
        if node["node_id"] in (pair["chosen_node"], pair["rejected_node"]):
            parts.append(
                Text(
                    f"\npair {pair['pair_id']}: {pair['chosen_node']} is preferred over "
                    f"{pair['rejected_node']}, gap {_number(pair['reward_gap'])}"
                )
            )
    return Group(*parts)


def pair_text(pair: Row, width: int) -> Group:
    """Returns a pair: the prompt, then both sides, next to each other if they fit."""
    prompt = "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in pair["prompt"])
    sides = [
        Panel(
            Group(
                Text("\n".join(message["content"] for message in pair[side])),
                Text(
                    f"\nreward {_number(pair[f'{side}_reward'])} from "
                    f"{pair[f'{side}_outcomes']} outcomes"
                ),
                _components(pair[f"{side}_components"] or ()),
            ),
            title=f"{mark} {side}: {pair[f'{side}_action']}",
            border_style=colour,
            width=width // 2 - 1 if width >= _WIDE else None,
        )
        for side, mark, colour in (("chosen", "✓", "green"), ("rejected", "✗", "red"))
    ]
    both = Columns(sides, padding=(0, 1)) if width >= _WIDE else Group(*sides)
    head = f"{pair['question']}\nGold answer: {' | '.join(pair['answers'])}"
    gap = f"gap {_number(pair['reward_gap'])}, depth {pair['depth']}, tree {pair['tree_id']}"
    return Group(Text(head, style="bold"), Text(gap), Panel(Text(prompt), title="prompt"), both)


def _rollouts(rollouts: Sequence[Row]) -> Table:
    rows = (
        (r["answer"] or "–", _number(r["em"]), _number(r["f1"]), r["steps"], r["stop_reason"] or "")
        for r in rollouts
    )
    return _grid(rows, ("answer", "EM", "F1", "steps", "end"))


def _components(components: Sequence[Row]) -> Table:
    return _grid((component["name"], _number(component["value"])) for component in components)


def _grid(rows: Iterable[tuple[Any, ...]], head: Sequence[str] = ()) -> Table:
    table = Table(*head, box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=bool(head))
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
