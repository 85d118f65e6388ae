"""Fresh rollouts in a study: drawn in its own process, and logged in its journal like a stage."""

import time
from collections.abc import Sequence
from typing import Literal

from branchwise.runs import (
    Event,
    FreshRolloutResult,
    Run,
    StageStopped,
    StudyRunner,
    command_key,
    roll_fresh,
)
from branchwise.types import Pair


def draw_fresh_rollouts(
    runner: StudyRunner,
    run: Run,
    pairs: Sequence[Pair],
    rollouts: int = 8,
    temperature: float | None = None,
) -> FreshRolloutResult:
    """Returns fresh rollouts of both sides of every pair, reusing those already stored.

    The journal gets no second entry if it already has this draw as done.

    Args:
        temperature: Sampling temperature of the rollouts; defaults to the policy's.

    Raises:
        StageStopped: If a limit or a signal came first.
    """
    sampling = "" if temperature is None else f" at a temperature of {temperature:g}"
    command = (
        f"fresh rollouts, {rollouts} per side{sampling}, of {len(pairs)} pairs of {run.folder}"
    )
    key = command_key((command,), runner.deciding)
    already_drawn = runner.journal.done(key) is not None
    if not already_drawn:
        runner.journal.note(Event(key, command, "started"))
    began = time.monotonic()
    rolled = roll_fresh(runner.context, run, pairs, rollouts, temperature)
    took = round(time.monotonic() - began, 1)
    if not already_drawn:
        status: Literal["failed", "done"] = "failed" if rolled.pending else "done"
        event = Event(key, command, status, seconds=took, exit_code=rolled.exit_code)
        runner.journal.note(event)
    if rolled.failed:
        runner.context.log(f"study: left out trees that failed: {dict(rolled.failed)}")
    if rolled.pending:
        message = f"fresh rollouts: {rolled.reason}; rerun the same command to resume"
        raise StageStopped(message, rolled.exit_code)
    return rolled
