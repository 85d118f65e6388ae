"""Chains as a prefix tree: what holds of any policy, and where both kinds of growth end."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcts import Expansion, Node, SearchSettings, Tree, sample_chains, search


class Wanderer:
    """A policy of a few actions, most often the first, that ends somewhere; every third leaf is
    unscored. What it draws depends on the seed, the node and the draw number alone."""

    def __init__(self, seed: int, actions: int) -> None:
        self.seed, self.actions = seed, actions
        self.drawn: Counter[tuple[str, int]] = Counter()
        self.evaluated: list[str] = []

    async def expand(self, node: Node[str], draw: int) -> Expansion[str]:
        self.drawn[node.path, draw] += 1
        dice = random.Random(f"{self.seed}:{node.path}:{draw}")
        key = min(dice.randrange(self.actions), dice.randrange(self.actions))
        last = node.depth >= 4 or (key + node.depth) % 3 == 2
        return Expansion(f"{node.state}{key}", last, key)

    async def evaluate(self, node: Node[str]) -> float | None:
        self.evaluated.append(node.path)
        return None if node.id % 3 == 0 else int(node.state) % 7 / 7


def facts(tree: Tree[str]) -> list[tuple[object, ...]]:
    return [
        (n.path, n.state, n.visits, n.scored, n.total, n.draws, n.duplicates, n.iteration)
        for n in tree.nodes
    ]


@given(st.integers(), st.integers(1, 5), st.integers(1, 40))
async def test_every_chain_goes_from_the_root_to_a_leaf(
    seed: int, actions: int, chains: int
) -> None:
    policy = Wanderer(seed, actions)
    settings = SearchSettings(kind="chains", iterations=chains, max_children=1)
    tree = await sample_chains("", policy.expand, policy.evaluate, settings)
    leaves = [node for node in tree.nodes if node.terminal]
    assert tree.root.visits == chains == sum(leaf.visits for leaf in leaves)
    assert policy.evaluated == [leaf.path for leaf in leaves]
    assert set(policy.drawn.values()) == {1}, "no two draws have one name in the ledger"
    for node in tree.nodes:
        children = tree.children(node)
        assert node.terminal == (not children)
        assert len({child.key for child in children}) == len(children)
        if children:
            assert node.visits == node.draws == sum(child.visits for child in children)
            assert node.draws == len(children) + node.duplicates
            assert node.scored == sum(child.scored for child in children)
            assert node.total == pytest.approx(sum(child.total for child in children))
            assert {draw for path, draw in policy.drawn if path == node.path} == set(
                range(node.draws)
            )
        else:
            assert node.scored == (0 if node.value is None else node.visits)
    again = Wanderer(seed, actions)
    same = await sample_chains("", again.expand, again.evaluate, settings)
    assert facts(same) == facts(tree)


@pytest.mark.parametrize("kind", ["tree", "chains"])
async def test_a_search_that_is_stopped_is_the_shorter_search(kind: str) -> None:
    grow = {"tree": search, "chains": sample_chains}[kind]
    asked = 0

    def thrice() -> bool:
        nonlocal asked
        asked += 1
        return asked <= 3

    one, other = Wanderer(7, 4), Wanderer(7, 4)
    long, short = (SearchSettings(kind=kind, iterations=n) for n in (50, 3))
    stopped = await grow("", one.expand, one.evaluate, long, thrice)
    assert asked == 4
    assert facts(stopped) == facts(await grow("", other.expand, other.evaluate, short))


async def test_an_exhausted_tree_is_not_said_to_be_stopped() -> None:
    policy, asked = Wanderer(1, 1), 0

    def counted() -> bool:
        nonlocal asked
        asked += 1
        return True

    settings = SearchSettings(iterations=50, max_children=1)
    tree = await search("", policy.expand, policy.evaluate, settings, counted)
    assert asked == tree.root.visits < 50
