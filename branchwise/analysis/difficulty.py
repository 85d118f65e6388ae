"""Difficulty labels of questions, and the training stages drawn by them (R1-Searcher section 2.1).

A question's label is the number of the first rollout that answers it. The measure is noisy: a
question with a success rate of 0.1 is labelled easy with probability 1 − 0.9⁹ = 0.61.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from branchwise.base import digest_of
from branchwise.types import Difficulty

EASY, MEDIUM, DIFFICULT, UNSOLVED = LABELS = ("easy", "medium", "difficult", "unsolved")

Stages = Mapping[str, Mapping[str, int]]
"""Stage → bucket → number of questions. A bucket is a label, or `<source>/<label>`."""


def difficulty_of(first_success: int | None, easy: int = 9, medium: int = 20) -> str:
    """Returns the label of a question.

    Args:
        first_success: Number of its first right rollout, from 1; None if none was right.
        easy: Last rollout at which a question is easy.
        medium: Last rollout at which it is medium.
    """
    if first_success is None:
        return UNSOLVED
    if first_success <= easy:
        return EASY
    return MEDIUM if first_success <= medium else DIFFICULT


def draw_stages(
    rows: Sequence[Difficulty], stages: Stages, seed: int
) -> dict[str, dict[str, list[Difficulty]]]:
    """Draws the questions of every stage by bucket, without repeats.

    If there are too few questions, stages become smaller. Each keeps the proportions of its buckets
    to within one question. Stages that need the same scarce bucket keep their relative sizes.

    Args:
        rows: Labels of distinct questions, in any order.
        stages: Stages whose buckets are all labels, or all `<source>/<label>`.
    """
    buckets: dict[str, list[Difficulty]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: digest_of(str(seed), row.source, row.question_id)):
        buckets[row.label].append(row)
        buckets[f"{row.source}/{row.label}"].append(row)
    shares = _shares(stages, {name: len(bucket) for name, bucket in buckets.items()})
    # Round the sums, not the parts: that never draws more questions than the bucket has.
    ends: dict[str, Fraction] = defaultdict(Fraction)
    drawn_stages: dict[str, dict[str, list[Difficulty]]] = {}
    for stage, numbers in stages.items():
        drawn_stages[stage] = {}
        for name, number in numbers.items():
            begin = _rounded(ends[name])
            ends[name] += shares[stage] * number
            drawn_stages[stage][name] = buckets[name][begin : _rounded(ends[name])]
    return drawn_stages


def _rounded(number: Fraction) -> int:
    """Rounds halves up. `round` maps 0.5 to 0 and 1.5 to 2, which would draw one too many."""
    return math.floor(number + Fraction(1, 2))


def _shares(stages: Stages, sizes: Mapping[str, int]) -> dict[str, Fraction]:
    """Returns the share of its questions that each stage gets, at most 1.

    All shares grow equally until a bucket is empty; the stages that use it then stop growing.
    """
    remaining = {
        name: Fraction(sizes.get(name, 0)) for numbers in stages.values() for name in numbers
    }
    growing, shares = dict(stages), dict[str, Fraction]()
    while growing:
        total = sum((Counter(numbers) for numbers in growing.values()), Counter[str]())
        # The largest equal share at which no bucket is overdrawn by the stages that still grow.
        share = min(Fraction(1), *(remaining[name] / number for name, number in total.items()))
        empty = {name for name, number in total.items() if remaining[name] == share * number}
        for stage, numbers in stages.items():
            if stage in growing and (share == 1 or empty & numbers.keys()):
                shares[stage] = share
                del growing[stage]
                for name, number in numbers.items():
                    remaining[name] -= share * number
    return shares
