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
    drawn = "" if temperature is None else f" at a temperature of {temperature:g}"
    command = f"fresh rollouts, {rollouts} per side{drawn}, of {len(pairs)} pairs of {run.folder}"
    key = command_key((command,), runner.deciding)
    again = runner.journal.done(key) is not None
    if not again:
        runner.journal.note(Event(key, command, "started"))
    began = time.monotonic()
    rolled = roll_fresh(runner.context, run, pairs, rollouts, temperature)
    took = round(time.monotonic() - began, 1)
    if not again:
        how: Literal["failed", "done"] = "failed" if rolled.pending else "done"
        ended = Event(key, command, how, seconds=took, exit_code=rolled.exit_code)
        runner.journal.note(ended)
    if rolled.failed:
        runner.context.log(f"study: left out trees that failed: {dict(rolled.failed)}")
    if rolled.pending:
        why = f"fresh rollouts: {rolled.reason}; rerun the same command to resume"
        raise StageStopped(why, rolled.exit_code)
    return rolled
