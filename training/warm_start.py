"""Trains the supervised start: an adapter that follows the protocol, and still varies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.text import Log
from training.examples import StepExample
from training.report import TrainingReport
from training.settings import TrainingSettings
from training.sft import train_on_steps
from training.training_run import log_line


def warm_start(
    examples: Sequence[StepExample],
    training: TrainingSettings,
    *,
    target: Path,
    seed: int,
    stops: tuple[str, ...] = (),
    resume: bool = False,
    log: Log = log_line,
    data: Mapping[str, Any] | None = None,
) -> TrainingReport:
    """Trains on traces; see `training.sft.train_on_steps` for its output and errors."""
    return train_on_steps(
        examples,
        training,
        kind="warm-start",
        start=training.warm_start.base,
        target=target,
        seed=seed,
        stops=stops,
        resume=resume,
        label_smoothing=training.warm_start.label_smoothing,
        log=log,
        data=data,
    )
