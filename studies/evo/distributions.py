"""How searches, steps and sub-queries are distributed (EVO-RAG figure 4): a table and a plot.

According to the paper, all rewards together lower median and spread of the step count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from branchwise.base import NONE, Sheet, number
from branchwise.rewards import Similarity
from branchwise.runs import svg
from branchwise.types import Prediction

from ..arms import EvaluatedArm
from .traces import RecordedStep, moves_of

QUANTILES = {"5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95}

QUANTITIES: Mapping[str, Callable[[Sequence[RecordedStep]], list[int]]] = {
    "searches per question": lambda moves: [sum(move.searches for move in moves)],
    "steps per question": lambda moves: [len(moves)],
    "near-duplicate searches per question": lambda moves: [sum(move.repeats for move in moves)],
    "words of a sub-query": lambda moves: [
        len(move.content.split()) for move in moves if move.searches
    ],
}
"""Functions that count a quantity in a trajectory; failed questions are not counted."""


@dataclass(frozen=True)
class Distribution:
    """All values of a quantity for one arm, with all seeds pooled."""

    arm: str
    quantity: str
    values: tuple[int, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Number of values, their mean and standard deviation, and `QUANTILES`."""
        if not self.values:
            return ("0", *(NONE for _ in range(len(QUANTILES) + 2)))
        points = np.quantile(self.values, list(QUANTILES.values()))
        return (
            str(len(self.values)),
            number(float(np.mean(self.values)), 2),
            number(float(np.std(self.values)), 2),
            *(number(float(point)) for point in points),
        )


def distributions(results: Sequence[EvaluatedArm], similarity: Similarity) -> list[Distribution]:
    """Returns every quantity for every evaluated arm."""
    paths = {
        result.arm.name: list(_paths(result, similarity))
        for result in results
        if result.predictions
    }
    return [
        Distribution(arm, quantity, tuple(value for path in paths_of_arm for value in count(path)))
        for quantity, count in QUANTITIES.items()
        for arm, paths_of_arm in paths.items()
    ]


def _paths(result: EvaluatedArm, similarity: Similarity) -> Iterator[list[RecordedStep]]:
    for rows in result.predictions.values():
        for row in rows:
            if isinstance(row, Prediction):
                yield list(moves_of(row, similarity))


def distribution_sheet(spread: Sequence[Distribution]) -> Sheet:
    """Returns one row per quantity and arm."""
    head = ("quantity", "arm", "n", "mean", "SD", *QUANTILES)
    rows = tuple((row.quantity, row.arm, *row.cells) for row in spread)
    return Sheet("Distributions (all seeds together)", head, rows, names=2)


def draw_distributions(spread: Sequence[Distribution], path: Path) -> None:
    """Draws box plots, one panel per quantity: median, quartiles, whiskers from 5 to 95 %."""
    with svg(path, len(QUANTITIES), 13, 3.6) as panels:
        for axes, quantity in zip(panels, QUANTITIES, strict=True):
            shown = [row for row in spread if row.quantity == quantity]
            arms = [row.arm for row in shown]
            axes.boxplot([row.values for row in shown], whis=(5, 95), showfliers=False)
            axes.set_xticks(range(1, len(shown) + 1), arms, rotation=45, ha="right")
            axes.set_title(quantity, fontsize="medium")
            axes.set_ylim(bottom=0)
