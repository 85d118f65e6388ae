"""Measures how far a training moved its policy, from its curve."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from training.curves import read_metrics

SHARE = 0.25
"""Share of the steps to average at each end. A single step is one batch, and the last batch is
often incomplete, so its loss depends on its pairs more than on the training.
"""
_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True)
class PolicyShift:
    """Figures of one training: means over its last quarter of steps, and the loss of its first
    quarter.

    In a training of one epoch the last pairs were new to it. A figure that the trainer did not log
    is None.

    Attributes:
        kl: Divergence in nats per step of the policy; see `training.preference.dpo.train_dpo`.
        margin: Margin of the implicit rewards, in nats times beta.
        accuracy: Share of the batch's pairs whose chosen side gained more, in [0, 1].
        first_reward, reward: Reward of the rollouts, in outcome RL.
    """

    steps: int
    first_loss: float | None
    loss: float | None
    kl: float | None
    margin: float | None
    accuracy: float | None
    first_reward: float | None = None
    reward: float | None = None

    @property
    def losses(self) -> str:
        """First and last loss, as text."""
        return _ends(self.first_loss, self.loss)

    @property
    def learned(self) -> str:
        """First and last reward if there are rewards, else losses, as text.

        The loss of outcome RL is about 0 throughout.
        """
        if self.reward is None:
            return f"loss {self.losses}"
        return f"reward {_ends(self.first_reward, self.reward)}"


def _ends(*values: float | None) -> str:
    return " → ".join("–" if value is None else f"{value:.3f}" for value in values)


def movement_of(model: Path) -> PolicyShift | None:
    """Returns the movement in `metrics.jsonl` of a model folder, or None without that file."""
    lines = read_metrics(model)
    if not lines:
        return None
    end = max(_LEAST_STEPS, round(len(lines) * SHARE))
    first, last = lines[:end], lines[-end:]
    return PolicyShift(
        steps=int(lines[-1]["step"]),
        first_loss=_mean(first, "loss"),
        loss=_mean(last, "loss"),
        kl=_mean(last, "kl"),
        margin=_mean(last, "margin"),
        accuracy=_mean(last, "accuracy"),
        first_reward=_mean(first, "reward"),
        reward=_mean(last, "reward"),
    )


def _mean(lines: list[dict[str, Any]], name: str) -> float | None:
    values = [float(line[name]) for line in lines if line.get(name) is not None]
    return fmean(values) if values else None
