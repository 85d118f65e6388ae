"""Sibling pairs: which two actions of one state become a preference.

Source: ReasonRAG section 2.2.3 (pairs with equal responses or a gap under 0.01 are dropped).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from annotation.settings import PairSettings
from rewards.answers import normalise
from rewards.spre import Label
from storage.records import NO_PARENT, TreeNode


@dataclass(frozen=True, slots=True)
class SiblingPair:
    """Two children of one node; the chosen one has the higher reward."""

    chosen: TreeNode
    rejected: TreeNode
    chosen_label: Label
    rejected_label: Label
    gap: float


def sibling_pairs(
    nodes: Sequence[TreeNode], labels: Sequence[Label], settings: PairSettings
) -> tuple[list[SiblingPair], Counter[str]]:
    """All pairs of siblings that make a preference, and why the others do not.

    Args:
        nodes: one tree, in order of `node_id`.
        labels: their labels, in the same order.
        settings: gap, evidence and what becomes of invalid actions.

    Returns:
        Pairs in order of (parent, chosen, rejected) and counts of what was dropped, by reason:
        `unlabelled`, `few_outcomes`, `same_content`, `small_gap`, `chosen_invalid`.
    """
    families: dict[int, list[tuple[TreeNode, Label]]] = defaultdict(list)
    for node, label in zip(nodes, labels, strict=True):
        if node.parent_id != NO_PARENT:
            families[node.parent_id].append((node, _labelled(node, label, settings)))
    pairs: list[SiblingPair] = []
    dropped: Counter[str] = Counter()
    for _, family in sorted(families.items()):
        for one, other in combinations(family, 2):
            pair = _compare(one, other, settings)
            if isinstance(pair, SiblingPair):
                pairs.append(pair)
            else:
                dropped[pair] += 1
    return pairs, dropped


def _labelled(node: TreeNode, label: Label, settings: PairSettings) -> Label:
    if node.action == "invalid" and settings.invalid == "rejected":
        return Label(0.0, label.n_outcomes)
    return label


def _compare(
    one: tuple[TreeNode, Label], other: tuple[TreeNode, Label], settings: PairSettings
) -> SiblingPair | str:
    """The pair that two siblings make, or why they make none."""
    if one[1].reward is None or other[1].reward is None:
        return "unlabelled"
    (chosen, high), (rejected, low) = sorted(
        (one, other), key=lambda side: (-(side[1].reward or 0.0), side[0].node_id)
    )
    gap = (high.reward or 0.0) - (low.reward or 0.0)
    if chosen.action == "invalid":
        return "chosen_invalid"
    if not all(_enough(node, label, settings) for node, label in (one, other)):
        return "few_outcomes"
    if _content(chosen) == _content(rejected):
        return "same_content"
    if gap < settings.min_gap:
        return "small_gap"
    return SiblingPair(chosen, rejected, high, low, gap)


def _enough(node: TreeNode, label: Label, settings: PairSettings) -> bool:
    """Whether a label rests on enough outcomes. A leaf's is exact: its one outcome is its own."""
    return node.terminal or label.n_outcomes >= settings.min_outcomes


def _content(node: TreeNode) -> tuple[str, str]:
    return node.action, normalise(node.content)
