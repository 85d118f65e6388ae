"""What a training on stored examples will take, for `--dry-run`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from branchwise.base import terminal_safe
from branchwise.training import ExampleSettings, TrainingKind
from branchwise.weights import TRAINING_RECORD

from .costs import duration
from .stage import StageContext


def training_estimate(context: StageContext, kind: TrainingKind, examples: int) -> dict[str, Any]:
    """Logs the optimiser steps and the time of a training; returns them.

    The time follows from the last training of this kind below `models/`, whose start and machine
    may have been others.
    """
    settings = context.recipe.training.of(kind)
    assert isinstance(settings, ExampleSettings)
    steps = settings.steps(examples)
    text = f"{kind}: examples {examples:,}, optimiser steps {steps:,}, no calls, no dollars"
    estimate: dict[str, Any] = {"examples": examples, "optimiser_steps": steps, "cost_usd": 0.0}
    earlier = max(_earlier(kind), default=None)
    if earlier is None:
        context.log(f"{text}; the time is not known, because `models/` has no such training")
        return {**estimate, "seconds": None}
    _, folder, seconds_each = earlier
    seconds = seconds_each * examples * settings.epochs
    context.log(f"{text}; about {duration(seconds)} at the pace of {terminal_safe(folder)}")
    return {**estimate, "seconds": round(seconds)}


def _earlier(kind: TrainingKind) -> Iterator[tuple[float, str, float]]:
    """Yields the time, the folder and the seconds per example of each finished training."""
    for record in Path("models").glob(f"*/*/{TRAINING_RECORD}"):
        try:
            content = json.loads(record.read_text())
            report = content["report"]
            seconds = report["seconds"] / (report["examples"] * content["settings"]["epochs"])
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            continue
        if report.get("kind") == kind:
            yield record.stat().st_mtime, str(record.parent), float(seconds)
