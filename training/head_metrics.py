"""How well a reward model orders siblings of questions that it was not trained on, head by head.

For each head, a length-only baseline is reported. A head that does not beat it has learned to tell
long texts from short ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rewards.heads import Array, Heads
from rewards.schedule import Weights
from training.comparisons import TIE, SiblingComparison, orders, places
from training.settings import RewardModelSettings

Signs = NDArray[np.float32]
"""+1, −1 or 0 for every comparison."""

SCORE = "score"
"""Name of the row of the whole model: its score against the weighted total."""


@dataclass(frozen=True, slots=True)
class HeadMetrics:
    """One head on the validation questions; None without a pair there.

    Attributes:
        trained: pairs that it learned from.
        pairs: pairs that it is measured on.
        loss: Mean of −log σ(f(x+) − f(x−)); ln 2 for a constant head.
        accuracy: share of the pairs that it orders as its label does; a tie counts half.
        length_only: the same of always preferring the longer text, or always the shorter one,
            whichever is right more often on the training questions.
        prefers: The preferred side.
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
    """All heads, and their combined score (which is not calibrated, so it has no loss)."""

    heads: tuple[HeadMetrics, ...]
    score: HeadMetrics

    @property
    def loss(self) -> float | None:
        """Mean over the heads that have pairs (the paper's validation loss)."""
        known = [head.loss for head in self.heads if head.loss is not None]
        return fmean(known) if known else None

    def as_json(self) -> dict[str, Any]:
        """The entry of `metrics.json`."""
        heads = {head.name: _without_name(head) for head in self.heads}
        return {"loss": self.loss, "heads": heads, SCORE: _without_name(self.score)}


def _without_name(head: HeadMetrics) -> dict[str, Any]:
    return {key: value for key, value in asdict(head).items() if key != "name"}


@dataclass(frozen=True)
class Steps:
    """The steps that comparisons point into.

    Attributes:
        vectors: (n, d).
        lengths: (n,) characters of the policy's own text.
        weights: Weight of every reward, by the comparison's t.
    """

    vectors: Array
    lengths: NDArray[np.int64]
    weights: Mapping[int, Weights]


def measure(
    heads: Heads,
    steps: Steps,
    trained: Sequence[SiblingComparison],
    kept: Sequence[SiblingComparison],
    settings: RewardModelSettings,
) -> ModelMetrics:
    """Measures trained heads on the comparisons that were kept for validation."""
    taught, asked = orders(trained, settings), orders(kept, settings)
    longer = _longer(steps, trained), _longer(steps, kept)
    better, worse = places(kept)
    outputs = heads.outputs(steps.vectors)
    margins = outputs[better] - outputs[worse]
    scales = [steps.weights[one.t] for one in kept]
    one, other = (heads.scores(steps.vectors[side], scales) for side in (better, worse))
    score = _measured(SCORE, one - other, (_totals(trained), _totals(kept)), longer)
    return ModelMetrics(
        heads=tuple(
            _measured(name, margins[:, k], (taught[:, k], asked[:, k]), longer)
            for k, name in enumerate(heads.names)
        ),
        score=replace(score, loss=None),
    )


def _measured(
    name: str, margins: Array, order: tuple[Signs, Signs], longer: tuple[Signs, Signs]
) -> HeadMetrics:
    """Returns one head.

    Args:
        margins: Output for the better side minus that for the worse one, of the kept comparisons.
        order: Targets of the head in the trained and the held-out comparisons.
        longer: Whether the better side is the longer one, for the trained and the held-out ones.
    """
    taught, asked = order
    long_is_right = _right((longer[0] * taught)[taught != 0])
    prefers: Literal["longer", "shorter"] = "longer"
    if long_is_right is not None and long_is_right < 0.5:
        prefers = "shorter"
    own = (margins * asked)[asked != 0]
    lengths = (longer[1] * asked)[asked != 0] * (1 if prefers == "longer" else -1)
    return HeadMetrics(
        name=name,
        trained=int((taught != 0).sum()),
        pairs=len(own),
        loss=float(np.logaddexp(0, -own.astype(np.float64)).mean()) if len(own) else None,
        accuracy=_right(own),
        length_only=_right(lengths),
        prefers=prefers,
    )


def _right(margins: Array) -> float | None:
    """Returns the share of the margins that are positive, a tie counted half; None if there is
    none.
    """
    return float(((margins > 0) + 0.5 * (margins == 0)).mean()) if len(margins) else None


def _longer(steps: Steps, comparisons: Sequence[SiblingComparison]) -> Signs:
    """+1 if the better side's text is longer than the worse one's, −1 if it is shorter."""
    better, worse = places(comparisons)
    found: Signs = np.sign(steps.lengths[better] - steps.lengths[worse]).astype(np.float32)
    return found


def _totals(comparisons: Sequence[SiblingComparison]) -> Signs:
    return np.array([one.total > TIE for one in comparisons], np.float32)
