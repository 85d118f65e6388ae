"""Sibling pairs: selects which two actions of one state become a preference.

Source: ReasonRAG section 2.2.3 (pairs with equal responses or a gap under 0.01 are dropped). The
remaining pairs are filtered. A control experiment (`pairs.order: shuffled`) then swaps the sides of
random pairs, so it keeps the same pairs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from branchwise.base import digest_of, replace_surrogates
from branchwise.rewards import Label, gap, is_wide_enough, strict_form
from branchwise.types import NO_PARENT, Component, TreeNode

from .settings import PairSettings

SHUFFLED = "shuffled pairs"
"""Hash salt of the coin tosses of `pairs.order: shuffled`."""

SCORE = "score"
"""Component of a pair's side: the reward model's score."""


@dataclass(frozen=True, slots=True)
class SiblingPair:
    """Two children of one node, and chosen minus rejected label.

    The chosen one has the higher label, unless sides were swapped or scores order the pairs; then
    `gap` may be negative.

    Attributes:
        margin: Chosen minus rejected, in the quantity that orders the pairs (labels or scores).
    """

    chosen: TreeNode
    rejected: TreeNode
    chosen_label: Label
    rejected_label: Label
    gap: float
    margin: float

    @property
    def swapped(self) -> "SiblingPair":
        """The same pair with the other side chosen."""
        labels = self.rejected_label, self.chosen_label
        return SiblingPair(self.rejected, self.chosen, *labels, -self.gap, -self.margin)


class _Sibling(NamedTuple):
    node: TreeNode
    label: Label
    score: float | None


def sibling_pairs(
    nodes: Sequence[TreeNode],
    labels: Sequence[Label],
    settings: PairSettings,
    scores: Sequence[float | None] | None = None,
    *,
    guessable: bool = False,
    whole_reply: bool = False,
    ties: bool = False,
) -> tuple[list[SiblingPair], Counter[str]]:
    """Returns all pairs of siblings that make a preference, and the number dropped by reason.

    Args:
        nodes: One tree, in order of `node_id`.
        labels: Labels of the nodes, in the same order.
        settings: Gap, evidence, treatment of invalid actions, and filters.
        scores: Reward model scores, in the same order. With `score: reward_model` they decide which
            side of a pair is better, and by how much; each is a component of its side's label.
        guessable: Whether the tree's question is guessable (`rewards.answers`).
        whole_reply: Whether siblings are equal only if their texts are (see `RewardScheme`).
        ties: Whether equal siblings are also returned, for studies; the earlier one is "chosen".

    Returns:
        Pairs in order of parent and siblings, and the number of dropped pairs by the first reason
            that applies: `unlabelled`, `unscored`, `chosen_invalid`, `few_outcomes`,
            `same_content`, `small_gap`, `other_action`, `unlike_actions`, `unlike_lengths`,
            `guessable`, `not_extreme`, `over_max_per_question`.
    """
    families: dict[int, list[_Sibling]] = defaultdict(list)
    for node, label, score in zip(nodes, labels, scores or [None] * len(nodes), strict=True):
        if node.parent_id != NO_PARENT:
            compared = _compared_label(node, label, score, settings)
            families[node.parent_id].append(_Sibling(node, compared, score))
    pairs: list[SiblingPair] = []
    dropped: Counter[str] = Counter()
    for _, family in sorted(families.items()):
        for earlier, later in combinations(family, 2):
            pair = _compare(earlier, later, settings, whole_reply, ties)
            if isinstance(pair, SiblingPair):
                pairs.append(pair)
            else:
                dropped[pair] += 1
    if guessable and settings.guessable == "drop":
        dropped["guessable"] = len(pairs)
        pairs = []
    chosen, over_limits = _choose(pairs, settings)
    if settings.order == "shuffled":
        chosen = [pair.swapped if _coin_swaps_sides(pair) else pair for pair in chosen]
    return chosen, dropped + over_limits


def _choose(
    pairs: Sequence[SiblingPair], settings: PairSettings
) -> tuple[list[SiblingPair], Counter[str]]:
    """Applies the limits per state and per question; counts the dropped pairs by reason."""
    chosen, dropped = list(pairs), Counter[str]()
    if settings.per_state == "extremes":
        states = defaultdict(list)
        for pair in pairs:
            states[pair.chosen.parent_id].append(pair)
        chosen = [pair for state in states.values() for pair in _widest(state, 1)]
        dropped["not_extreme"] = len(pairs) - len(chosen)
    if settings.max_per_question is not None:
        dropped["over_max_per_question"] = max(0, len(chosen) - settings.max_per_question)
        chosen = _widest(chosen, settings.max_per_question)
    return chosen, dropped


def _widest(pairs: Sequence[SiblingPair], most: int) -> list[SiblingPair]:
    """Returns the pairs with the largest margin, in their old order.

    Earlier nodes break ties.
    """
    ranked = sorted(
        range(len(pairs)),
        key=lambda i: (-pairs[i].margin, pairs[i].chosen.node_id, pairs[i].rejected.node_id),
    )
    return [pairs[i] for i in sorted(ranked[:most])]


def _coin_swaps_sides(pair: SiblingPair) -> bool:
    """Returns whether the coin prefers the rejected side.

    The coin picks the earlier or the later sibling by a hash of the state and both texts. It
    ignores labels and scores, so every estimator gets the same tosses.
    """
    earlier, later = sorted((pair.chosen, pair.rejected), key=lambda node: node.node_id)
    coin_digest = digest_of(
        SHUFFLED,
        pair.chosen.question_id,
        str(pair.chosen.parent_id),
        replace_surrogates(earlier.text),  # as it is read back from a stored tree
        replace_surrogates(later.text),
    )
    preferred = later if int(coin_digest, 16) % 2 else earlier
    return preferred is not pair.chosen


def _compared_label(
    node: TreeNode, label: Label, score: float | None, settings: PairSettings
) -> Label:
    """Returns the label of a pair's side.

    An invalid action that may be rejected has reward 0. The score becomes a further component, to
    explain the pair's order.
    """
    if node.action == "invalid" and settings.invalid == "rejected":
        label = Label(0.0, label.n_outcomes)
    if score is None:
        return label
    return replace(label, components=(*label.components, Component(name=SCORE, value=score)))


def _compare(
    earlier: _Sibling, later: _Sibling, settings: PairSettings, whole_reply: bool, ties: bool
) -> SiblingPair | str:
    """Returns the pair of two siblings, or the reason that they do not form one."""
    difference = _difference(earlier, later, settings)
    if isinstance(difference, str):
        return difference
    if math.isclose(difference, 0.0, abs_tol=1e-9):  # two sums of the same numbers in another order
        difference = 0.0
    # If both are equal, the earlier node is called chosen; without `ties` the pair is too narrow.
    by_preference = (earlier, later) if difference >= 0 else (later, earlier)
    (chosen, high, _), (rejected, low, _) = by_preference
    if chosen.action == "invalid" or chosen.cut:
        return "chosen_invalid"  # a training would learn to end where the text was cut
    for node, label, _ in (earlier, later):
        # A leaf's label is exact, so it needs no other outcomes.
        if not node.terminal and label.n_outcomes < settings.min_outcomes:
            return "few_outcomes"
    if _have_equal_content(chosen, rejected, settings, whole_reply):
        return "same_content"
    if (difference == 0 and not ties) or not is_wide_enough(difference, settings.min_gap):
        return "small_gap"
    return _exclusion_reason(chosen, rejected, settings) or SiblingPair(
        chosen, rejected, high, low, gap(high, low), abs(difference)
    )


def _difference(earlier: _Sibling, later: _Sibling, settings: PairSettings) -> float | str:
    """Returns `earlier` − `later` in the ordering quantity, or the reason it is undefined."""
    if earlier.label.reward is None or later.label.reward is None:
        return "unlabelled"
    if settings.score == "labels":
        return gap(earlier.label, later.label)
    if earlier.score is None or later.score is None:
        return "unscored"
    return earlier.score - later.score


def _exclusion_reason(chosen: TreeNode, rejected: TreeNode, settings: PairSettings) -> str | None:
    """Returns the reason the settings exclude such a pair, or None."""
    actions = settings.actions
    if rejected.action != "invalid":  # `settings.invalid` decides on those
        if actions is not None and not {chosen.action, rejected.action} <= set(actions):
            return "other_action"
        if settings.same_action and chosen.action != rejected.action:
            return "unlike_actions"
    shorter, longer = sorted((len(chosen.text), len(rejected.text)))
    if settings.max_length_ratio is not None and longer > settings.max_length_ratio * shorter:
        return "unlike_lengths"
    return None


def _have_equal_content(
    chosen: TreeNode, rejected: TreeNode, settings: PairSettings, whole_reply: bool
) -> bool:
    if whole_reply:
        return chosen.text == rejected.text
    if settings.same_content == "verbatim":
        return chosen.content == rejected.content
    if chosen.action != rejected.action:
        return False
    return strict_form(chosen.content) == strict_form(rejected.content)
