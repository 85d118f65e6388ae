"""Trees compared node by node with trees computed by hand (`golden/*.json`, `why` is the sum)."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcts import Expansion, Node, SearchSettings, Tree, sample_chains, search
from mcts.selection import select_child, uct

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


class Script:
    """Children and values in the order that a golden file gives them."""

    def __init__(self, draws: dict[str, list[list[object]]]) -> None:
        self.draws = draws
        self.evaluated: list[str] = []

    async def expand(self, node: Node[str], draw: int) -> Expansion[str]:
        key, _, *terminal = self.draws[node.path][draw]
        return Expansion(f"{node.state}{key}", bool(terminal), str(key))

    async def evaluate(self, node: Node[str]) -> float | None:
        parent, _, draw = node.path.rpartition("/")
        self.evaluated.append(node.path)
        value = self.draws[parent][int(draw)][1]
        assert value is None or isinstance(value, float)
        return value


async def grow(file: Path) -> tuple[Tree[str], Script, dict[str, Any]]:
    golden = json.loads(file.read_text())  # noqa: ASYNC240
    script = Script(golden["draws"])
    settings = SearchSettings(**golden["settings"])
    grown = {"tree": search, "chains": sample_chains}[settings.kind]
    return await grown("", script.expand, script.evaluate, settings), script, golden


@pytest.mark.parametrize("file", GOLDEN, ids=lambda f: f.stem)
async def test_tree_is_the_one_computed_by_hand(file: Path) -> None:
    tree, script, golden = await grow(file)
    got = [
        {
            "id": n.id,
            "parent": n.parent,
            "key": n.key,
            "path": n.path,
            "visits": n.visits,
            "scored": n.scored_visits,
            "total": pytest.approx(n.value_sum),
            "terminal": n.terminal,
        }
        for n in tree.nodes
    ]
    assert golden["expected"] == got
    settings = SearchSettings(**golden["settings"])
    inner_too = settings.kind != "chains" and settings.evaluator != "playout"
    assert script.evaluated == [n.path for n in tree.nodes[1:] if n.terminal or inner_too]


def test_the_issue_s_cases_are_all_there() -> None:
    assert {f.stem for f in GOLDEN} >= {
        "puct", "uct", "unscored", "duplicate_sibling", "exhausted", "chains",
        "playout", "playout_repeated", "branches", "normalise",
    }  # fmt: skip


def test_uct_explores_by_the_visits_of_the_parent() -> None:
    """N of root, parent and both children together are 100, 8 and 4: three different choices."""
    tree = Tree.grow_from("")
    parent = tree.add_child(tree.root, "p", terminal=False, key="p", draw=0)
    for key, visits, value in (("good", 3, 0.9), ("rare", 1, 0.3)):
        child = tree.add_child(parent, key, terminal=False, key=key, draw=len(parent.children))
        child.visits = child.scored_visits = visits
        child.value_sum = visits * value
    tree.root.visits, parent.visits = 100, 8
    # 0.9 + √(ln 8 / 3) = 1.733 against 0.3 + √(ln 8) = 1.742; with ln 4, 1.580 against 1.477.
    assert select_child(tree, parent, uct, 1.0).key == "rare"
    parent.visits = 4
    assert select_child(tree, parent, uct, 1.0).key == "good"


def test_a_child_without_a_scored_pass_is_worth_what_its_parent_is() -> None:
    tree = Tree.grow_from("")
    scored, unscored = (
        tree.add_child(tree.root, key, terminal=True, key=key, draw=draw)
        for draw, key in enumerate("ab")
    )
    assert tree.q(unscored) == 0.5
    scored.value = 0.9
    for leaf in (scored, unscored):
        tree.back_up(leaf)
    assert tree.q(unscored) == tree.q(tree.root) == 0.9


async def test_an_endless_policy_visits_every_pass_once() -> None:
    """Whatever the draws, N is conserved: a node's passes ended at it or at its children."""
    values = {"evaluated": 0}

    async def expand(node: Node[int], draw: int) -> Expansion[int]:
        state = (node.state * 7 + draw * 3 + 1) % 101
        return Expansion(state, state % 11 == 0, state % 4)

    async def evaluate(node: Node[int]) -> float | None:
        values["evaluated"] += 1
        return None if node.state % 5 == 0 else node.state / 101

    settings = SearchSettings(iterations=200, max_children=3)
    tree = await search(2, expand, evaluate, settings)
    assert tree.root.visits == 200
    assert values["evaluated"] == len(tree.nodes) - 1
    for node in tree.nodes:
        below = sum(child.visits for child in tree.children(node))
        assert node.visits >= below
        assert len(node.children) + node.duplicates <= settings.max_children
        assert len({child.key for child in tree.children(node)}) == len(node.children)
