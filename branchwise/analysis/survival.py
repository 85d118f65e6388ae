"""Label survival: does the order of a pair hold under rollouts that its labels did not use?

A pair survives if fresh rollouts have a higher mean value on its chosen side than on its rejected
side. Preferences that do not survive are noise, and DPO learns noise too. This module only computes
with stored rollouts (`runs.fresh_rollouts` draws them), so the same draws can judge
every estimator, α and filter.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

from branchwise.base import known_mean, to_uint32
from branchwise.types import FreshRollouts, Pair, Rollout

from .significance import wilson

RESAMPLES = 2000
OrderVerdict = Literal["kept", "reversed", "tied"]
Fresh = Mapping[tuple[str, int], FreshRollouts]
"""Fresh rollouts by (tree_id, node_id)."""
Worth = Callable[[Rollout, Sequence[str]], float | None]
"""(rollout, gold answers) → value of the rollout, or None if it does not count (`rewards.scheme`).
"""
Bounds = tuple[float, float]
"""Low and high end of a 95 % interval."""


def fresh_value(rolled: FreshRollouts, answers: Sequence[str], worth: Worth) -> float | None:
    """Returns the mean value of the fresh rollouts that count; None if none does."""
    return known_mean(worth(rollout, answers) for rollout in rolled.rollouts)


def fresh_gap(pair: Pair, fresh: Fresh, worth: Worth) -> float | None:
    """Returns the fresh value of the chosen side minus that of the rejected one, in [−1, 1].

    It lacks the bias of a label's gap, which is above 0 by selection. An invalid side is worth 0,
    as in its label. None if another side was not rolled out, or all its rollouts do not count.
    """

    def value(node: int, action: str) -> float | None:
        if action == "invalid":
            return 0.0
        rolled = fresh.get((pair.tree_id, node))
        return None if rolled is None else fresh_value(rolled, pair.answers, worth)

    chosen = value(pair.chosen_node, pair.chosen_action)
    rejected = value(pair.rejected_node, pair.rejected_action)
    return None if chosen is None or rejected is None else chosen - rejected


def order_verdict(pair: Pair, fresh: Fresh, worth: Worth) -> OrderVerdict | None:
    """Returns the verdict of fresh rollouts on a pair's order; None without one (`fresh_gap`)."""
    gap = fresh_gap(pair, fresh, worth)
    return None if gap is None else _verdict(gap)


def _verdict(gap: float) -> OrderVerdict:
    if math.isclose(gap, 0.0, abs_tol=1e-9):  # two sums of the same numbers in another order
        return "tied"
    return "kept" if gap > 0 else "reversed"


def sample_pairs(pairs: Sequence[Pair], n: int, seed: int = 0) -> list[Pair]:
    """Returns at most `n` pairs, spread evenly over the questions.

    Each question gives one pair, then each a second one, and so on. A hash decides the pairs and
    their order. A larger sample of the same pairs contains every smaller one.
    """

    def hash_of(*parts: object) -> bytes:
        return hashlib.blake2b("\x1f".join(map(str, (seed, *parts))).encode()).digest()

    by_question: dict[str, list[Pair]] = defaultdict(list)
    for pair in sorted(pairs, key=lambda p: hash_of(p.tree_id, p.chosen_node, p.rejected_node)):
        by_question[pair.question_id].append(pair)
    ranked = [
        (round_, hash_of(question), pair)
        for question, of_question in by_question.items()
        for round_, pair in enumerate(of_question)
    ]
    return [pair for _, _, pair in sorted(ranked, key=lambda r: r[:2])[:n]]


@dataclass(frozen=True, slots=True)
class SurvivalRow:
    """Survival of a group of pairs; shares in [0, 1], 95 % intervals resampling questions.

    Attributes:
        group: Value of the facet; "all" without one.
        decided: Share kept among the untied ones; None if all are tied.
        luck: Expected share kept if the order were random: half of the untied share.
        fresh_gap: Mean gap by fresh rollouts, which is free of selection bias.
    """

    group: str
    pairs: int
    questions: int
    kept: float
    reversed: float
    tied: float
    kept_interval: Bounds
    decided: float | None
    decided_interval: Bounds | None
    luck: float
    label_gap: float
    fresh_gap: float
    fresh_gap_interval: Bounds


_OUTCOMES = ((0, "0"), (1, "1"), (3, "2–3"), (7, "4–7"), (math.inf, "8 or more"))
_GAPS = (
    (0.05, "0.00–0.05"),
    (0.1, "0.05–0.10"),
    (0.2, "0.10–0.20"),
    (0.4, "0.20–0.40"),
    (math.inf, "0.40–1.00"),
)


def _band(value: float, bands: Sequence[tuple[float, str]]) -> str:
    return next(name for most, name in bands if value <= most)


Facet = Callable[[Pair], str]
"""Pair → its group; groups are sorted by name."""
FACETS: Mapping[str, Facet] = {
    "outcomes": lambda pair: _band(min(pair.chosen_outcomes, pair.rejected_outcomes), _OUTCOMES),
    "gap": lambda pair: _band(abs(pair.reward_gap), _GAPS),
    "depth": lambda pair: f"{pair.depth:02}",
    "action": lambda pair: f"{pair.chosen_action} > {pair.rejected_action}",
}
"""Facets by name: outcomes of the side with fewer, gap of the labels, depth, compared actions."""


def survival_table(
    pairs: Sequence[Pair], fresh: Fresh, worth: Worth, facet: str | Facet | None = None
) -> list[SurvivalRow]:
    """Returns the survival of the pairs that were rolled out, one row per group.

    Args:
        facet: Name in `FACETS`, or the caller's own facet; None for one row of all pairs.
    """
    group_of = FACETS[facet] if isinstance(facet, str) else facet
    groups: dict[str, list[tuple[Pair, float]]] = defaultdict(list)
    for pair in pairs:
        gap = fresh_gap(pair, fresh, worth)
        if gap is not None:
            groups["all" if group_of is None else group_of(pair)].append((pair, gap))
    return [_row(name, judged) for name, judged in sorted(groups.items())]


def _row(group: str, judged: Sequence[tuple[Pair, float]]) -> SurvivalRow:
    counts: dict[str, Counter[OrderVerdict]] = defaultdict(Counter)
    gaps: dict[str, float] = defaultdict(float)
    # Sums per question, because pairs of one tree share its luck and are not independent.
    for pair, gap in judged:
        counts[pair.question_id][_verdict(gap)] += 1
        gaps[pair.question_id] += gap
    keeps, reversals, ties = (
        np.array([count[verdict] for count in counts.values()], dtype=float)
        for verdict in ("kept", "reversed", "tied")
    )
    n, decided = len(judged), keeps + reversals
    return SurvivalRow(
        group=group,
        pairs=n,
        questions=len(counts),
        kept=float(keeps.sum() / n),
        reversed=float(reversals.sum() / n),
        tied=float(ties.sum() / n),
        kept_interval=_share_interval(keeps, decided + ties),
        decided=float(keeps.sum() / decided.sum()) if decided.any() else None,
        decided_interval=_share_interval(keeps, decided) if decided.any() else None,
        luck=float(decided.sum() / n / 2),
        label_gap=fmean(pair.reward_gap for pair, _ in judged),
        fresh_gap=fmean(gap for _, gap in judged),
        fresh_gap_interval=_interval(
            np.array([gaps[question] for question in counts]), decided + ties
        ),
    )


def _share_interval(hits: np.ndarray, tries: np.ndarray) -> Bounds:
    """Bootstraps the share Σ hits / Σ tries over questions; both of shape (questions,).

    If all resamples are equal (one question, or all kept), an interval of width 0 would be wrong.
    Wilson's interval replaces it, with one observation per question.
    """
    is_tried = tries > 0
    hits, tries = hits[is_tried], tries[is_tried]
    low, high = _interval(hits, tries)
    if low == high:
        return wilson(float(hits.sum() / tries.sum()), len(tries))
    return low, high


def _interval(sums: np.ndarray, counts: np.ndarray) -> Bounds:
    """Returns the percentile bootstrap of the mean Σ sums / Σ counts over questions.

    Args:
        sums: Sums per question, shape (questions,).
        counts: Counts per question above 0, shape (questions,).
    """
    # A sample of n questions with replacement is a count per question. With the counts as weights,
    # one matrix product gives all resampled sums.
    n = len(counts)
    draws = np.random.default_rng(to_uint32(0)).multinomial(n, [1 / n] * n, size=RESAMPLES)
    low, high = np.percentile((draws @ sums) / (draws @ counts), [2.5, 97.5])
    return float(low), float(high)
