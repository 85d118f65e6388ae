"""How far a training moved its policy, read from the curve that it left."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from training.curves import read_metrics

SHARE = 0.25
"""Of the steps, at either end. One alone is a batch, and the last one rarely a whole one: its loss
is of its pairs more than of the training, the more so with a supervised term in it."""
_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Movement:
    """Figures of one training: means over its last quarter of steps, and the loss of its first
    quarter.

    In a training of one epoch the last pairs were new to it. None if the trainer did not log it.

    Attributes:
        kl: nats per step of the policy, see `training.dpo.train_dpo`.
        margin: Margin of the implicit rewards, in nats times beta.
        accuracy: share of the batch's pairs whose chosen side gained more, in [0, 1].
    """

    steps: int
    first_loss: float | None
    loss: float | None
    kl: float | None
    margin: float | None
    accuracy: float | None

    @property
    def losses(self) -> str:
        """Describes the first and the last one."""
        first, last = ("–" if x is None else f"{x:.3f}" for x in (self.first_loss, self.loss))
        return f"{first} → {last}"


def movement_of(model: Path) -> Movement | None:
    """Returns the movement that `metrics.jsonl` of a model folder shows; None without such
    a curve.
    """
    lines = read_metrics(model)
    if not lines:
        return None
    end = max(_LEAST_STEPS, round(len(lines) * SHARE))
    first, last = lines[:end], lines[-end:]
    return Movement(
        steps=int(lines[-1]["step"]),
        first_loss=_mean(first, "loss"),
        loss=_mean(last, "loss"),
        kl=_mean(last, "kl"),
        margin=_mean(last, "margin"),
        accuracy=_mean(last, "accuracy"),
    )


def _mean(lines: list[dict[str, Any]], name: str) -> float | None:
    values = [float(line[name]) for line in lines if line.get(name) is not None]
    return fmean(values) if values else None
