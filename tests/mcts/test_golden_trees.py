"""Trees compared node by node with trees computed by hand.

The key `why` of each file in `golden` gives the computation.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from branchwise.mcts import (
    SEARCH_SETTINGS,
    Expansion,
    Node,
    SearchSettings,
    Tree,
    TreeSettings,
    sample_chains,
    search,
)
from branchwise.mcts.selection import puct, select_child, uct

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


class Script:
    """Policy that returns the children and values of a golden file, in order."""

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


def settings_of(golden: dict[str, Any]) -> SearchSettings:
    kind = golden["settings"].get("kind", "tree")
    return SEARCH_SETTINGS[kind].model_validate(golden["settings"])


async def grow(file: Path) -> tuple[Tree[str], Script, dict[str, Any]]:
    golden = json.loads(file.read_text())  # noqa: ASYNC240
    script = Script(golden["draws"])
    settings = settings_of(golden)
    grown: Any = {"tree": search, "chains": sample_chains}[settings.kind]
    return await grown("", script.expand, script.evaluate, settings), script, golden


@pytest.mark.parametrize("file", GOLDEN, ids=lambda f: f.stem)
async def test_trees_agree_with_trees_computed_by_hand(file: Path) -> None:
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
    settings = settings_of(golden)
    inner_too = settings.kind != "chains" and not settings.uses("playout")
    assert script.evaluated == [n.path for n in tree.nodes[1:] if n.terminal or inner_too]


def test_all_required_cases_have_a_golden_file() -> None:
    assert {f.stem for f in GOLDEN} >= {
        "puct", "uct", "unscored", "duplicate_sibling", "exhausted", "chains",
        "playout", "playout_repeated", "branches", "normalise",
    }  # fmt: skip


@pytest.mark.parametrize(("difference", "chosen"), [(0.53, "good"), (0.47, "rare")])
def test_puct_uses_the_visits_of_the_siblings(difference: float, chosen: str) -> None:
    """The parent has 5 visits, one of them its own evaluation; its two children have 3 and 1.

    Exploration gives the second one √4 · (1/2 − 1/4) = 0.5 more. With √5 it would be 0.56, with √3
    0.43.
    """
    tree = Tree.grow_from("")
    for draw, (key, visits, value) in enumerate((("good", 3, 0.2 + difference), ("rare", 1, 0.2))):
        child = tree.add_child(tree.root, key, terminal=False, key=key, draw=draw)
        child.visits = child.scored_visits = visits
        child.value_sum = visits * value
    tree.root.visits = 5
    assert select_child(tree, tree.root, puct, 1.0).key == chosen


def test_uct_uses_the_visits_of_the_parent() -> None:
    """The root has 100 visits, the parent 8, and its two children have 4 together."""
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


def test_a_child_without_scored_visits_has_the_value_of_its_parent() -> None:
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


async def test_search_conserves_visits_for_an_endless_policy() -> None:
    """Checks that every visit of a node ends at the node or at one of its children."""
    values = {"evaluated": 0}

    async def expand(node: Node[int], draw: int) -> Expansion[int]:
        state = (node.state * 7 + draw * 3 + 1) % 101
        return Expansion(state, state % 11 == 0, state % 4)

    async def evaluate(node: Node[int]) -> float | None:
        values["evaluated"] += 1
        return None if node.state % 5 == 0 else node.state / 101

    settings = TreeSettings(iterations=200, max_children=3)
    tree = await search(2, expand, evaluate, settings)
    assert tree.root.visits == 200
    assert values["evaluated"] == len(tree.nodes) - 1
    for node in tree.nodes:
        below = sum(child.visits for child in tree.children(node))
        assert node.visits >= below
        assert len(node.children) + node.duplicates <= settings.max_children
        assert len({child.key for child in tree.children(node)}) == len(node.children)
