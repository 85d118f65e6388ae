"""Chains as a prefix tree: invariants for any policy, branches, and the end of a search."""

import random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_policy import Wanderer, facts

from branchwise.mcts import (
    ChainSettings,
    Expansion,
    Node,
    SearchSettings,
    TreeSettings,
    sample_chains,
    search,
)


@given(st.integers(), st.integers(1, 5), st.integers(1, 40))
async def test_every_chain_runs_from_the_root_to_a_leaf(
    seed: int, actions: int, chains: int
) -> None:
    policy = Wanderer(seed, actions)
    settings = ChainSettings(iterations=chains)
    tree = await sample_chains("", policy.expand, policy.evaluate, settings)
    leaves = [node for node in tree.nodes if node.terminal]
    assert tree.root.visits == chains == sum(leaf.visits for leaf in leaves)
    assert policy.evaluated == [leaf.path for leaf in leaves]
    assert set(policy.drawn.values()) == {1}, "every draw has a name of its own in the ledger"
    for node in tree.nodes:
        children = tree.children(node)
        assert node.terminal == (not children)
        assert len({child.key for child in children}) == len(children)
        if children:
            assert node.visits == node.draws == sum(child.visits for child in children)
            assert node.draws == len(children) + node.duplicates
            assert node.scored_visits == sum(child.scored_visits for child in children)
            assert node.value_sum == pytest.approx(sum(child.value_sum for child in children))
            assert {draw for path, draw in policy.drawn if path == node.path} == set(
                range(node.draws)
            )
        else:
            assert node.scored_visits == (0 if node.value is None else node.visits)
    again = Wanderer(seed, actions)
    same = await sample_chains("", again.expand, again.evaluate, settings)
    assert facts(same) == facts(tree)


@pytest.mark.parametrize(
    ("grow", "settings"), [(search, TreeSettings), (sample_chains, ChainSettings)]
)
async def test_a_stopped_search_equals_a_search_with_fewer_iterations(
    grow: Any, settings: type[SearchSettings]
) -> None:
    asked = 0

    def thrice() -> bool:
        nonlocal asked
        asked += 1
        return asked <= 3

    one, other = Wanderer(7, 4), Wanderer(7, 4)
    long, short = (settings.model_validate({"iterations": n}) for n in (50, 3))
    stopped = await grow("", one.expand, one.evaluate, long, thrice)
    assert asked == 4
    assert facts(stopped) == facts(await grow("", other.expand, other.evaluate, short))


async def test_an_exhausted_tree_ends_without_another_stop_check() -> None:
    policy, asked = Wanderer(1, 1), 0

    def counted() -> bool:
        nonlocal asked
        asked += 1
        return True

    settings = TreeSettings(iterations=50, max_children=1)
    tree = await search("", policy.expand, policy.evaluate, settings, counted)
    assert asked == tree.root.visits < 50


@given(st.integers(), st.integers(1, 5), st.integers(1, 6), st.integers(2, 3))
async def test_every_state_of_a_chain_gets_branches_or_repeats_its_actions(
    seed: int, actions: int, chains: int, branches: int
) -> None:
    alone, policy = Wanderer(seed, actions), Wanderer(seed, actions)
    unbranched = ChainSettings(iterations=chains)
    branched = unbranched.model_copy(update={"branches": branches})
    visited = await sample_chains("", alone.expand, alone.evaluate, unbranched)
    tree = await sample_chains("", policy.expand, policy.evaluate, branched)
    assert [n.path for n in tree.nodes][: len(visited.nodes)] == [n.path for n in visited.nodes]
    by_chains = {node.path for node in visited.nodes if not node.terminal}
    for node in tree.nodes:
        if node.path in by_chains:
            assert len(node.children) >= branches or node.draws >= 2 * branches
        if not node.terminal:
            # So the visits of siblings are in proportion to the probabilities of the policy.
            assert node.draws == sum(child.visits for child in tree.children(node))
            assert node.draws == len(node.children) + node.duplicates
            assert node.draws >= node.visits
    leaves = [node for node in tree.nodes if node.terminal]
    assert tree.root.visits == chains
    assert policy.evaluated == [leaf.path for leaf in leaves]
    assert set(policy.drawn.values()) == {1}


async def test_branches_start_only_until_the_search_is_stopped() -> None:
    policy, asked = Wanderer(7, 4), 0

    def five_times() -> bool:
        nonlocal asked
        asked += 1
        return asked <= 5

    settings = ChainSettings(iterations=3, branches=3)
    tree = await sample_chains("", policy.expand, policy.evaluate, settings, five_times)
    assert (asked, tree.root.visits) == (6, 3)
    assert sum(node.visits for node in tree.nodes if node.terminal) == 5, "two branches"


async def test_branches_do_not_bias_the_mean_number_of_steps() -> None:
    """Compares the mean number of steps left with theory: long chains must not weigh more."""

    async def steps_left(seed: int, branches: int) -> list[float]:
        dice = random.Random(seed)

        async def expand(node: Node[int], draw: int) -> Expansion[int]:
            last = node.depth >= 9 or dice.random() < 0.4
            return Expansion(node.state + 1, last, (last, dice.randrange(8)))

        async def evaluate(node: Node[int]) -> float:
            return 0.0

        def mean(node: Node[int]) -> float:
            children = tree.children(node)
            visits = sum(child.visits for child in children)
            return sum(c.visits * (1 + mean(c)) for c in children) / visits if visits else 0.0

        settings = ChainSettings(iterations=1, branches=branches)
        tree = await sample_chains(0, expand, evaluate, settings)
        return [mean(child) for child in tree.children(tree.root) if not child.terminal]

    expected = 0.0
    for _ in range(9):
        expected = 1 + 0.6 * expected
    for branches in (2, 3):
        found = [one for seed in range(1500) for one in await steps_left(seed, branches)]
        assert fmean(found) == pytest.approx(expected, abs=0.12)
