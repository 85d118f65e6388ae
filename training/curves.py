"""The curve of a training: `metrics.jsonl`, with one JSON line per step, and log messages.

Also measures how far the training moved its policy, from its curve.
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.base import (
    LOG_BYTES,
    Log,
    StepMessages,
    StorageError,
    TrainingError,
    as_object,
    known_mean,
    parse_json,
    read_inside,
)

from .checkpoints import list_checkpoint

METRICS = "metrics.jsonl"

_NAMES = {
    "learning_rate": "lr",
    "num_input_tokens_seen": "tokens",
    "num_tokens": "tokens",
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "rewards/chosen": "chosen_reward",
    "rewards/rejected": "rejected_reward",
    "logps/chosen": "chosen_logps",
    "logps/rejected": "rejected_logps",
}
"""The trainers' names → ours; other numbers keep their names."""
_LEFT_OUT = ("train_runtime", "train_tokens_per_second")


def curves(target: Path, checkpoints: Path, run: str, log: Log) -> Any:
    """Returns a trainer callback that writes `target/metrics.jsonl` and lists checkpoints by hash.

    A resumed run replaces the lines of repeated steps. Raises `TrainingError` after a step whose
    loss or gradient is not finite, before a checkpoint of it is saved.

    Args:
        checkpoints: Folder that the trainer saves into.
        run: Fingerprint of the training; see `training.checkpoints`.
        log: Callback for progress, at most every half minute.
    """
    from transformers import TrainerCallback

    class Curves(TrainerCallback):  # type: ignore[misc]
        """See `curves`."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            keep = [line for line in read_metrics(target) if line["step"] <= state.global_step]
            target.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in keep)
            (target / METRICS).write_text(text, encoding="utf-8")
            self.before = keep[-1].get("seconds", 0.0) if keep else 0.0
            self.started = time.monotonic()
            self.messages = StepMessages(log, "steps", state.max_steps, state.global_step)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
        ) -> None:
            if "loss" not in logs:
                return
            if not all(math.isfinite(logs.get(name, 0.0)) for name in ("loss", "grad_norm")):
                raise TrainingError(
                    f"step {state.global_step}: loss or gradient is not finite, so the weights "
                    "are lost; lower the learning rate and train again"
                )
            seconds = round(self.before + time.monotonic() - self.started, 2)
            line: dict[str, Any] = {"step": state.global_step, "seconds": seconds}
            for name, value in logs.items():
                if isinstance(value, int | float) and name not in _LEFT_OUT:
                    line[_NAMES.get(name, name)] = value
            with (target / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.messages.report(state.global_step, f", loss {logs['loss']:.3f}")

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            list_checkpoint(checkpoints, checkpoints / f"checkpoint-{state.global_step}", run)

    return Curves()


def read_metrics(target: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`, in order of the step, without a line torn by a kill."""
    try:
        lines = read_inside(target, METRICS, LOG_BYTES).split(b"\n")
        return [_read_line(line) for line in lines[:-1] if line]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{target / METRICS}: cannot read the curve of the training ({error}); remove "
            "the file, or retrain"
        ) from error


def _read_line(text: bytes) -> dict[str, Any]:
    """Returns a line of numbers.

    Raises:
        ValueError: If `text` is not such a line.
    """
    line = as_object(parse_json(text, constants=True))
    sound = all(isinstance(x, float) or type(x) is int for x in line.values() if x is not None)
    if not sound or not isinstance(line.get("step"), int):
        raise ValueError("a line lacks its step or has values that are not numbers")
    return line


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

    def mean(part: list[dict[str, Any]], name: str) -> float | None:
        return known_mean(line.get(name) for line in part)

    first, last = lines[:end], lines[-end:]
    return PolicyShift(
        steps=int(lines[-1]["step"]),
        first_loss=mean(first, "loss"),
        loss=mean(last, "loss"),
        kl=mean(last, "kl"),
        margin=mean(last, "margin"),
        accuracy=mean(last, "accuracy"),
        first_reward=mean(first, "reward"),
        reward=mean(last, "reward"),
    )
