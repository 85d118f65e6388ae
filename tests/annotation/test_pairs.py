"""Which siblings become a pair, and what happens to those that do not."""

from collections import Counter

import pytest

from annotation.pairs import sibling_pairs
from annotation.settings import PairSettings
from rewards.spre import Label
from storage.records import TreeNode


def node(node_id: int, action: str, content: str, parent: int = 0) -> TreeNode:
    return TreeNode(
        tree_id="t", question_id="q", source="s", seed=0, node_id=node_id, parent_id=parent,
        depth=1, stage="reasoning", action=action, text=content, content=content,
        terminal=action in {"answer", "invalid"},
    )  # fmt: skip


ROOT = node(0, "", "", parent=-1)


def run(
    *children: tuple[TreeNode, Label], **settings: object
) -> tuple[list[tuple[int, int]], Counter[str]]:
    nodes = [ROOT, *(child for child, _ in children)]
    labels = [Label(None, 0), *(label for _, label in children)]
    pairs, dropped = sibling_pairs(nodes, labels, PairSettings(**settings))
    return [(p.chosen.node_id, p.rejected.node_id) for p in pairs], dropped


def test_every_pair_of_siblings_is_compared_higher_first() -> None:
    pairs, dropped = run(
        (node(1, "query", "a"), Label(0.2, 3)),
        (node(2, "query", "b"), Label(0.9, 3)),
        (node(3, "answer", "c"), Label(0.5, 1)),
    )
    assert pairs == [(2, 1), (3, 1), (2, 3)]
    assert not dropped


def test_children_of_different_parents_never_pair() -> None:
    pairs, _ = run(
        (node(1, "query", "a"), Label(0.2, 3)), (node(2, "query", "b", parent=1), Label(0.9, 3))
    )
    assert pairs == []


@pytest.mark.parametrize(
    ("one", "other", "settings", "reason"),
    [
        (("a", Label(0.2, 3)), ("b", Label(None, 0)), {}, "unlabelled"),
        (("a", Label(0.2, 1)), ("b", Label(0.5, 2)), {"min_outcomes": 2}, "few_outcomes"),
        (("Lyon!", Label(0.2, 1)), ("lyon", Label(0.5, 2)), {}, "same_content"),
        (("a", Label(0.5, 1)), ("b", Label(0.505, 1)), {}, "small_gap"),
    ],
)
def test_what_is_dropped_is_counted_by_reason(
    one: tuple[str, Label], other: tuple[str, Label], settings: dict[str, int], reason: str
) -> None:
    pairs, dropped = run(
        (node(1, "query", one[0]), one[1]), (node(2, "query", other[0]), other[1]), **settings
    )
    assert (pairs, dropped) == ([], {reason: 1})


def test_a_leaf_s_own_outcome_is_enough() -> None:
    pairs, _ = run(
        (node(1, "answer", "a"), Label(0.0, 1)),
        (node(2, "query", "b"), Label(0.5, 2)),
        min_outcomes=2,
    )
    assert pairs == [(2, 1)]


def test_an_invalid_action_is_dropped_or_rejected_but_never_chosen() -> None:
    invalid, query = (
        (node(1, "invalid", ""), Label(None, 0)),
        (node(2, "query", "b"), Label(0.5, 2)),
    )
    assert run(invalid, query)[1] == {"unlabelled": 1}
    assert run(invalid, query, invalid="rejected")[0] == [(2, 1)]
    worthless = (node(2, "query", "b"), Label(0.0, 2))
    assert run(invalid, worthless, invalid="rejected", min_gap=0.0)[0] == []
