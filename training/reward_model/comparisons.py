"""Comparisons of siblings: the training data of a reward model's heads.

Source: EVO-RAG section 3.3. x+ and x− are two branches of one state, and only comparisons with
|R(x+) − R(x−)| ≥ 0.3 are kept. Head k learns the order of its own component's returns, which can
be the reverse of the total's. A tie teaches it nothing. (In the paper all heads learn the order of
the total: `labels: total`.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from branchwise.base import share_of
from branchwise.rewards import RETURN, REWARDS, TOTAL, Label

from ..settings import RewardModelSettings

TIE = 1e-9
"""Largest difference of equal returns; they are sums, so they have rounding errors."""


@dataclass(frozen=True, slots=True)
class SiblingComparison:
    """Two siblings that differ in action or query.

    Attributes:
        better, worse: Indices into a list of steps, by the weighted total.
        t: 0-based index of the policy call that made them.
        gaps: Return of the better side minus that of the worse one, per reward. Negative if this
            reward prefers the other side; missing if the return of either side is None.
        total: Gap of the weighted total, > 0.
    """

    question_id: str
    t: int
    better: int
    worse: int
    gaps: Mapping[str, float]
    total: float


def return_gaps(better: Label, worse: Label) -> dict[str, float]:
    """Returns, per reward, the return of `better` minus that of `worse`, if known for both."""
    first, second = (
        {
            c.name.removesuffix(RETURN): c.value
            for c in side.components
            if c.name.endswith(RETURN) and c.value is not None
        }
        for side in (better, worse)
    )
    return {name: value - second[name] for name, value in first.items() if name in second}


def head_names(settings: RewardModelSettings) -> tuple[str, ...]:
    """Returns the names of the heads of a reward model, in order."""
    return (TOTAL,) if settings.heads == "single" else REWARDS


def orders(
    comparisons: Sequence[SiblingComparison], settings: RewardModelSettings
) -> NDArray[np.float32]:
    """Returns the target of each head in each comparison: (n, K).

    +1 if the head's label is higher for the better side, −1 if it is lower, 0 if the labels tie or
    are not known.
    """
    names = head_names(settings)
    if settings.heads == "single" or settings.labels == TOTAL:
        rows = [[comparison.total] * len(names) for comparison in comparisons]
    else:
        rows = [[c.gaps.get(name, 0.0) for name in names] for c in comparisons]
    gaps = np.array(rows, np.float64).reshape(len(comparisons), len(names))
    return (np.sign(gaps) * (np.abs(gaps) > TIE)).astype(np.float32)


def split_questions(
    comparisons: Iterable[SiblingComparison], share: float, split: int = 0
) -> tuple[list[SiblingComparison], list[SiblingComparison]]:
    """Splits the comparisons by question into training and validation, in order.

    Args:
        share: Share of the questions, in [0, 0.5]. Only a hash of the question and `split`
            decides, so models of every seed and schedule have the same validation questions.
        split: Seed of the split; another number holds out other questions.
    """
    trained: list[SiblingComparison] = []
    validation: list[SiblingComparison] = []
    for comparison in comparisons:
        question = comparison.question_id
        hashed = f"validation:{split}:{question}" if split else f"validation:{question}"
        (validation if share_of(hashed) < share else trained).append(comparison)
    return trained, validation


def places(comparisons: Sequence[SiblingComparison]) -> tuple[Any, Any]:
    """Returns the indices of the better and of the worse sides: (n,) each."""
    both = np.array([(c.better, c.worse) for c in comparisons], np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
