"""Measures how well each head of a reward model orders siblings of held-out questions.

Each head comes with a length-only baseline. A head that does not beat it has only learned to
distinguish long texts from short ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from branchwise.base import known_mean
from branchwise.rewards import Array, Heads, Weights

from ..settings import RewardModelSettings
from .comparisons import TIE, SiblingComparison, orders, places

Signs = NDArray[np.float32]
"""+1, −1 or 0 for every comparison."""

SCORE = "score"
"""Name of the row of the whole model, which compares its score with the weighted total."""


@dataclass(frozen=True, slots=True)
class HeadMetrics:
    """One head on the validation questions; None without a pair there.

    Attributes:
        trained: Number of training pairs.
        pairs: Number of validation pairs.
        loss: Mean of −log σ(f(x+) − f(x−)); ln 2 for a constant head.
        accuracy: Share of the pairs that it orders as its label does; a tie counts half.
        length_only: Accuracy of a rule that always prefers the longer text, or always the shorter
            one, whichever is right more often on the training questions.
        prefers: The side that this rule prefers.
    """

    name: str
    trained: int
    pairs: int
    loss: float | None
    accuracy: float | None
    length_only: float | None
    prefers: Literal["longer", "shorter"]


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """All heads, and their combined score, which is not calibrated and so lacks a loss."""

    heads: tuple[HeadMetrics, ...]
    score: HeadMetrics

    @property
    def loss(self) -> float | None:
        """Mean over the heads that have pairs (the paper's validation loss)."""
        return known_mean(head.loss for head in self.heads)

    def as_json(self) -> dict[str, Any]:
        """Returns the entry of `metrics.json`."""
        rows = {row.pop("name"): row for row in map(asdict, (*self.heads, self.score))}
        score = rows.pop(SCORE)
        return {"loss": self.loss, "heads": rows, SCORE: score}


@dataclass(frozen=True)
class Steps:
    """The steps that the comparisons index.

    Attributes:
        vectors: Embeddings, (n, d).
        lengths: Characters of the policy's own text, (n,).
        weights: Weight of each reward, by the comparison's t.
    """

    vectors: Array
    lengths: NDArray[np.int64]
    weights: Mapping[int, Weights]


def measure(
    heads: Heads,
    steps: Steps,
    trained: Sequence[SiblingComparison],
    validation: Sequence[SiblingComparison],
    settings: RewardModelSettings,
) -> ModelMetrics:
    """Measures trained heads on the validation comparisons."""
    taught, validated = orders(trained, settings), orders(validation, settings)
    longer = _longer(steps, trained), _longer(steps, validation)
    better, worse = places(validation)
    outputs = heads.outputs(steps.vectors)
    margins = outputs[better] - outputs[worse]
    scales = [steps.weights[comparison.t] for comparison in validation]
    scores = [heads.scores(steps.vectors[side], scales) for side in (better, worse)]
    score = _measured(SCORE, scores[0] - scores[1], (_totals(trained), _totals(validation)), longer)
    return ModelMetrics(
        heads=tuple(
            _measured(name, margins[:, k], (taught[:, k], validated[:, k]), longer)
            for k, name in enumerate(heads.names)
        ),
        score=replace(score, loss=None),
    )


def _measured(
    name: str, margins: Array, order: tuple[Signs, Signs], longer: tuple[Signs, Signs]
) -> HeadMetrics:
    """Returns the metrics of one head.

    Args:
        margins: Output for the better side minus that for the worse one, in validation.
        order: Targets of the head in the training and the validation comparisons.
        longer: Whether the better side is the longer one, in training and validation.
    """
    taught, validated = order
    long_is_right = _right((longer[0] * taught)[taught != 0])
    prefers_shorter = long_is_right is not None and long_is_right < 0.5
    ordered = (margins * validated)[validated != 0]
    lengths = (longer[1] * validated)[validated != 0] * (-1 if prefers_shorter else 1)
    return HeadMetrics(
        name=name,
        trained=int((taught != 0).sum()),
        pairs=len(ordered),
        loss=float(np.logaddexp(0, -ordered.astype(np.float64)).mean()) if len(ordered) else None,
        accuracy=_right(ordered),
        length_only=_right(lengths),
        prefers="shorter" if prefers_shorter else "longer",
    )


def _right(margins: Array) -> float | None:
    """Returns the share of positive margins (a tie counts half), or None without margins."""
    return float(((margins > 0) + 0.5 * (margins == 0)).mean()) if len(margins) else None


def _longer(steps: Steps, comparisons: Sequence[SiblingComparison]) -> Signs:
    """Returns +1 if the better side's text is longer than the worse one's, −1 if it is shorter."""
    better, worse = places(comparisons)
    signs: Signs = np.sign(steps.lengths[better] - steps.lengths[worse]).astype(np.float32)
    return signs


def _totals(comparisons: Sequence[SiblingComparison]) -> Signs:
    return np.array([comparison.total > TIE for comparison in comparisons], np.float32)
