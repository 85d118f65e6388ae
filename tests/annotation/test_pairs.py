"""Sibling pairs: which siblings are paired, and why the others are dropped."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from sample_records import a_node

from branchwise.annotation.pairs import SiblingPair, sibling_pairs
from branchwise.annotation.settings import PairSettings
from branchwise.rewards.outcome import Label
from branchwise.types import TreeNode


def node(node_id: int, action: str, content: str, parent: int = 0) -> TreeNode:
    return a_node(
        node_id=node_id, parent_id=parent, action=action, text=content, content=content,
        terminal=action in {"answer", "invalid"},
    )  # fmt: skip


ROOT = node(0, "", "", parent=-1)


def run(
    *children: tuple[TreeNode, Label], **settings: Any
) -> tuple[list[tuple[int, int]], Counter[str]]:
    nodes = [ROOT, *(child for child, _ in children)]
    labels = [Label(None, 0), *(label for _, label in children)]
    pairs, dropped = sibling_pairs(nodes, labels, PairSettings(**settings))
    return [(p.chosen.node_id, p.rejected.node_id) for p in pairs], dropped


def test_equal_siblings_are_compared_only_on_request_and_small_gaps_stay() -> None:
    nodes = [ROOT, *(node(i, "query", text) for i, text in enumerate("abc", start=1))]
    labels = [Label(None, 0), Label(0.5, 3), Label(0.5, 3), Label(0.5001, 3)]
    settings = PairSettings(min_gap=0)
    sides = {
        ties: [(p.chosen.node_id, p.rejected.node_id) for p in pairs]
        for ties in (False, True)
        for pairs, _ in [sibling_pairs(nodes, labels, settings, ties=ties)]
    }
    assert sides == {False: [(3, 1), (3, 2)], True: [(1, 2), (3, 1), (3, 2)]}


@pytest.mark.parametrize(
    ("one", "other", "settings", "reason"),
    [
        (("a", Label(0.2, 3)), ("b", Label(None, 0)), {}, "unlabelled"),
        (("a", Label(0.2, 1)), ("b", Label(0.5, 2)), {"min_outcomes": 2}, "few_outcomes"),
        (("Lyon!", Label(0.2, 1)), ("lyon", Label(0.5, 2)), {}, "same_content"),
        (("a", Label(0.5, 1)), ("b", Label(0.505, 1)), {}, "small_gap"),
        (("a", Label(0.5, 1)), ("b", Label(0.5, 1)), {"min_gap": 0.0}, "small_gap"),
        (("a", Label(0.3, 1)), ("b", Label(0.1 + 0.2, 1)), {"min_gap": 0.0}, "small_gap"),
    ],
)
def test_dropped_pairs_are_counted_by_reason(
    one: tuple[str, Label], other: tuple[str, Label], settings: dict[str, int], reason: str
) -> None:
    pairs, dropped = run(
        (node(1, "query", one[0]), one[1]), (node(2, "query", other[0]), other[1]), **settings
    )
    assert (pairs, dropped) == ([], {reason: 1})


@pytest.mark.parametrize(
    ("one", "other", "normalised", "verbatim"),
    [
        (("answer", "Lyon!"), ("answer", "lyon"), 0, 1),
        (("answer", "Lyon"), ("query", "Lyon"), 1, 0),
        (("answer", "Lyon"), ("answer", "Lyon"), 0, 0),
    ],
)
def test_equal_contents_are_compared_normalised_or_verbatim(
    one: tuple[str, str], other: tuple[str, str], normalised: int, verbatim: int
) -> None:
    siblings = (node(1, *one), Label(0.2, 1)), (node(2, *other), Label(0.9, 1))
    assert len(run(*siblings)[0]) == normalised
    assert len(run(*siblings, same_content="verbatim")[0]) == verbatim


def test_a_gap_equal_to_min_gap_is_kept() -> None:
    assert 0.3 - 0.1 < 0.2, "the case needs a difference that is rounded down"
    siblings = (node(1, "query", "a"), Label(0.1, 1)), (node(2, "query", "b"), Label(0.3, 1))
    assert run(*siblings, min_gap=0.2)[0] == [(2, 1)]
    assert run(*siblings, min_gap=0.2001)[1] == {"small_gap": 1}
    low, high = (Label(float(np.float32(score)), 1) for score in (0.85, 0.9))
    siblings = (node(1, "query", "a"), low), (node(2, "query", "b"), high)
    assert run(*siblings, min_gap=0.05)[0] == [(2, 1)], "judge scores are stored with 32 bits"


def test_a_leaf_needs_only_its_own_outcome() -> None:
    pairs, _ = run(
        (node(1, "answer", "a"), Label(0.0, 1)),
        (node(2, "query", "b"), Label(0.5, 2)),
        min_outcomes=2,
    )
    assert pairs == [(2, 1)]


def test_a_cut_reply_is_never_chosen() -> None:
    cut = node(1, "answer", "a").model_copy(update={"cut": True}), Label(0.9, 3)
    whole = node(2, "answer", "b"), Label(0.2, 3)
    assert run(cut, whole) == ([], {"chosen_invalid": 1})
    better = node(2, "answer", "b"), Label(1.0, 3)
    assert run(cut, better)[0] == [(2, 1)]


def test_an_invalid_action_is_dropped_or_rejected_but_never_chosen() -> None:
    invalid, query = (
        (node(1, "invalid", ""), Label(None, 0)),
        (node(2, "query", "b"), Label(0.5, 2)),
    )
    assert run(invalid, query)[1] == {"unlabelled": 1}
    for filters in ({}, {"same_action": True}, {"actions": ["query"]}):
        assert run(invalid, query, invalid="rejected", **filters)[0] == [(2, 1)]
    worthless = (node(2, "query", "b"), Label(0.0, 2))
    assert run(invalid, worthless, invalid="rejected", min_gap=0.0)[0] == []


@pytest.mark.parametrize(
    ("settings", "pairs", "dropped"),
    [
        ({}, [(2, 1), (3, 1), (2, 3), (4, 5)], {}),
        ({"actions": ["answer"]}, [(2, 3), (4, 5)], {"other_action": 2}),
        ({"same_action": True}, [(2, 3), (4, 5)], {"unlike_actions": 2}),
        ({"max_length_ratio": 1.5}, [(2, 1), (3, 1), (2, 3)], {"unlike_lengths": 1}),
        ({"max_length_ratio": 1}, [], {"unlike_lengths": 4}),
        ({"per_state": "extremes"}, [(2, 1), (4, 5)], {"not_extreme": 2}),
        # The gaps are 0.7, 0.3, 0.4 and 0.4; equal gaps are taken in the order of the nodes.
        ({"max_per_question": 1}, [(2, 1)], {"over_max_per_question": 3}),
        ({"max_per_question": 3}, [(2, 1), (2, 3), (4, 5)], {"over_max_per_question": 1}),
        ({"max_per_question": 9}, [(2, 1), (3, 1), (2, 3), (4, 5)], {}),
        (
            {"actions": ["answer"], "per_state": "extremes", "max_per_question": 1},
            [(2, 3)],
            {"other_action": 2, "over_max_per_question": 1},
        ),
    ],
)
def test_pair_filters_and_counts_of_dropped_pairs(
    settings: dict[str, Any], pairs: list[tuple[int, int]], dropped: dict[str, int]
) -> None:
    """Pairs all siblings of two states, 1, 2, 3 below the root and 4, 5 below 1, but no others."""
    found = run(
        (node(1, "query", "France"), Label(0.2, 3)),
        (node(2, "answer", "Lyon"), Label(0.9, 1)),
        (node(3, "answer", "Rhone"), Label(0.5, 1)),
        (node(4, "answer", "a city", parent=1), Label(0.8, 1)),
        (node(5, "answer", "Paris, a city", parent=1), Label(0.4, 1)),
        **settings,
    )
    assert found == (pairs, dropped)


@pytest.mark.parametrize(
    ("setting", "can_be", "kept"), [("drop", True, 0), ("drop", False, 1), ("keep", True, 1)]
)
def test_pairs_of_a_guessable_question_can_be_dropped(
    setting: str, can_be: bool, kept: int
) -> None:
    nodes = [ROOT, node(1, "query", "a"), node(2, "query", "b")]
    settings = PairSettings.model_validate({"guessable": setting})
    labels = [Label(None, 0), Label(0.2, 3), Label(0.9, 3)]
    pairs, dropped = sibling_pairs(nodes, labels, settings, guessable=can_be)
    assert (len(pairs), dropped["guessable"]) == (kept, 1 - kept)


def test_an_empty_reply_exceeds_every_length_ratio() -> None:
    invalid, query = (
        (node(1, "invalid", ""), Label(None, 0)),
        (node(2, "query", "b"), Label(0.5, 2)),
    )
    found = run(invalid, query, invalid="rejected", max_length_ratio=100)
    assert found == ([], {"unlike_lengths": 1})


def shuffled(*rewards: float) -> list[SiblingPair]:
    """Returns the shuffled pairs of one state whose siblings have these rewards, in order."""
    children = [node(i, "query", f"text {i}") for i in range(1, len(rewards) + 1)]
    labels = [Label(None, 0), *(Label(reward, n) for n, reward in enumerate(rewards, start=1))]
    settings = PairSettings(order="shuffled")
    return sibling_pairs([ROOT, *children], labels, settings)[0]


def test_a_shuffled_pair_keeps_node_label_and_gap_consistent() -> None:
    rewards = [i / 40 for i in range(40)]
    pairs = shuffled(*rewards)
    assert len(pairs) == 780, "shuffling should not change the number of pairs"
    for pair in pairs:
        for side, label in (
            (pair.chosen, pair.chosen_label),
            (pair.rejected, pair.rejected_label),
        ):
            assert label == Label(rewards[side.node_id - 1], side.node_id)
        difference = rewards[pair.chosen.node_id - 1] - rewards[pair.rejected.node_id - 1]
        assert pair.gap == pytest.approx(difference)
    turned = sum(pair.gap < 0 for pair in pairs)
    assert 306 < turned < 474, "about half should be swapped (six standard deviations are 84)"


def test_shuffling_is_deterministic_and_independent_of_the_labels() -> None:
    rising = [i / 20 for i in range(20)]
    one, same, other = shuffled(*rising), shuffled(*rising), shuffled(*rising[::-1])
    sides = [[(p.chosen.node_id, p.rejected.node_id) for p in pairs] for pairs in (one, same)]
    assert sides[0] == sides[1]
    assert sorted(sides[0]) == sorted((p.chosen.node_id, p.rejected.node_id) for p in other)
    assert {p.gap > 0 for p in one} == {True, False}
