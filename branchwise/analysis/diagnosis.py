"""Predicts from pairs and trees, without a model, whether training on them can help.

This module only counts; `pipelines.diagnose.diagnosis_rules` interprets the figures.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import numpy as np

from branchwise.agent import content_of, is_end
from branchwise.rewards import guessable, token_overlap
from branchwise.types import NO_PARENT, Pair, TreeNode

from .significance import wilson
from .survival import Bounds

NEAR = 0.8
"""Minimum similarity of near-duplicates."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Figures of a set of pairs; shares are of the pairs, in [0, 1].

    Attributes:
        one_outcome: Share with an estimated side that has a single outcome; None for imported
            pairs, which have an order but no rewards.
        gaps: Quantiles of the reward gap, at `QUANTILES`; None for imported pairs.
        chosen_longer: Share of the pairs of unequal length whose chosen reply is longer in
            characters; None without any.
        length_difference: Mean characters of chosen minus rejected.
        near_duplicates: Share whose sides have the same action and nearly the same words
            (`similarity`).
        repeated: Share whose prompt and replies are in an earlier pair.
        contradicted: Share for which another pair has the same prompt and replies in the opposite
            order.
        guessable: Share whose question has an answer that can be guessed (`rewards.answers`).
        actions: Number of pairs by "chosen > rejected" action.
    """

    pairs: int
    questions: int
    one_outcome: float | None
    gaps: tuple[float, ...] | None
    chosen_longer: float | None
    chosen_longer_interval: Bounds | None
    length_difference: float
    near_duplicates: float
    repeated: float
    contradicted: float
    guessable: float
    actions: dict[str, int]


def pair_figures(pairs: Sequence[Pair]) -> PairFigures | None:
    """Returns the figures of the pairs; None without pairs."""
    if not pairs:
        return None
    n, gaps = len(pairs), [pair.reward_gap for pair in pairs]
    lengths = [len(pair.chosen[0].content) - len(pair.rejected[0].content) for pair in pairs]
    unequal = [length for length in lengths if length]
    longer = sum(length > 0 for length in unequal) / len(unequal) if unequal else None
    orders = {_order(pair) for pair in pairs}
    mix = Counter(f"{pair.chosen_action} > {pair.rejected_action}" for pair in pairs)
    return PairFigures(
        pairs=n,
        questions=len({pair.question_id for pair in pairs}),
        one_outcome=sum(map(_rests_on_one, pairs)) / n if any(gaps) else None,
        gaps=tuple(map(float, np.quantile(gaps, QUANTILES))) if any(gaps) else None,
        chosen_longer=longer,
        chosen_longer_interval=None if longer is None else wilson(longer, len(unequal)),
        length_difference=fmean(lengths),
        near_duplicates=sum(similarity(pair) >= NEAR for pair in pairs) / n,
        repeated=1 - len(orders) / n,
        contradicted=sum(_order(pair, flipped=True) in orders for pair in pairs) / n,
        guessable=sum(guessable(pair.question, pair.answers) for pair in pairs) / n,
        actions=dict(mix.most_common()),
    )


def similarity(pair: Pair) -> float:
    """Returns the similarity of the contents; 0 if the actions differ."""
    if pair.chosen_action != pair.rejected_action:
        return 0.0
    chosen, rejected = (side[0].content for side in (pair.chosen, pair.rejected))
    return token_overlap(content_of(chosen) or chosen, content_of(rejected) or rejected)


def _order(pair: Pair, *, flipped: bool = False) -> tuple[object, ...]:
    sides = (pair.chosen[0].content, pair.rejected[0].content)
    return (pair.prompt, *(sides[::-1] if flipped else sides))


def _rests_on_one(pair: Pair) -> bool:
    sides = (
        (pair.chosen_action, pair.chosen_outcomes),
        (pair.rejected_action, pair.rejected_outcomes),
    )
    return any(not is_end(action) and outcomes <= 1 for action, outcomes in sides)


@dataclass(frozen=True, slots=True)
class TreeFigures:
    """Figures of a set of trees.

    Attributes:
        states: Number of states with two or more labelled children; only these can be compared.
        spread: Mean over these states of the standard deviation of their children's rewards.
        flat: Share of these states whose children all have the same reward.
        right, wrong: Share of questions whose outcomes are all fully right (F1 1), or all fully
            wrong (F1 0). If α = 1, none of their steps is better than another.
        invalid_actions: Share of the steps that are not an action of the protocol.
        invalid_rollouts: Share of the rollouts that ended in an invalid action.
    """

    questions: int
    trees: int
    states: int
    spread: float | None
    flat: float | None
    right: float
    wrong: float
    invalid_actions: float
    invalid_rollouts: float | None

    @property
    def silent(self) -> float:
        """Share of the questions that are always right or always wrong."""
        return self.right + self.wrong


def tree_figures(trees: Iterable[Sequence[TreeNode]]) -> TreeFigures | None:
    """Returns the figures of labelled trees; None without any.

    Each tree is read once and not kept, so they need not be in memory together.
    """
    counted: Counter[str] = Counter()
    spreads: list[float] = []
    outcomes: dict[str, list[float]] = defaultdict(list)
    for tree in trees:
        ends = [rollout.stop_reason for node in tree for rollout in node.rollouts]
        steps = [node for node in tree if node.parent_id != NO_PARENT]
        counted["trees"] += 1
        counted["steps"] += len(steps)
        counted["invalid steps"] += sum(node.action == "invalid" for node in steps)
        counted["rollouts"] += len(ends)
        counted["invalid rollouts"] += ends.count("invalid")
        spreads += map(pstdev, _families(steps))
        outcomes[tree[0].question_id] += _outcomes(tree)
    if not outcomes:
        return None
    n = len(outcomes)
    return TreeFigures(
        questions=n,
        trees=counted["trees"],
        states=len(spreads),
        spread=fmean(spreads) if spreads else None,
        flat=_share(sum(spread < _SAME for spread in spreads), len(spreads)),
        right=sum(bool(f1s) and min(f1s) >= 1 for f1s in outcomes.values()) / n,
        wrong=sum(bool(f1s) and max(f1s) <= 0 for f1s in outcomes.values()) / n,
        invalid_actions=_share(counted["invalid steps"], counted["steps"]) or 0.0,
        invalid_rollouts=_share(counted["invalid rollouts"], counted["rollouts"]),
    )


def _families(steps: Iterable[TreeNode]) -> list[list[float]]:
    """Returns the rewards of siblings, for the states that have at least two labelled ones."""
    families: dict[int, list[float]] = defaultdict(list)
    for node in steps:
        if node.reward is not None:
            families[node.parent_id].append(node.reward)
    return [rewards for rewards in families.values() if len(rewards) > 1]


def _outcomes(tree: Iterable[TreeNode]) -> Iterator[float]:
    """Yields F1 of every outcome: rollouts and leaves; an end without an answer is 0."""
    for node in tree:
        for rollout in node.rollouts:
            yield rollout.f1 or 0.0
        if node.terminal:
            yield node.f1 or 0.0


def _share(part: int, total: int) -> float | None:
    return part / total if total else None
