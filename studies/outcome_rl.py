"""Compares outcome rewards: GRPO from one warm start, with one change of the recipe per arm.

All policies answer the same 600 questions of the split `test` once, greedily. The usual
tables are followed by the verdicts on the test answers and the curves of the trainings.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from branchwise.base import Sheet, known_mean, number, percent
from branchwise.runs import StudyRunner, svg
from branchwise.training import read_metrics
from branchwise.types import Prediction

from .arms import Arm, EvaluatedArm, evaluate_arms, make_start
from .study_tables import Claim, write_report

TEST = {"evaluation.split": "test", "evaluation.limit": 600}
THIRDS = ("first", "middle", "last")
VERDICTS = ("format_ok", "relevance", "all_correct", "evaluated", "copied")
"""Fields of a prediction; none of them depends on the reward that was trained on."""


def compare_rewards(
    runner: StudyRunner,
    *,
    name: str,
    arms: Sequence[Arm],
    claims: Sequence[Claim],
    curves: Sequence[str],
) -> None:
    """Runs a study (see module).

    Args:
        curves: Names in `metrics.jsonl` to plot over the batches.
    """
    make_start(runner)
    for results in evaluate_arms(runner, arms, TEST):
        if runner.context.dry_run:
            continue
        plot_curves(results, curves, runner.folder / f"{name}-curves.svg")
        more = (verdict_sheet(results), curve_sheet(results, curves))
        write_report(runner, name, results, claims, more=more)


def verdict_sheet(results: Sequence[EvaluatedArm]) -> Sheet:
    """Returns the protocol's verdicts on the test answers, means over questions and seeds."""
    rows = []
    for result in results:
        scored = [row for rows in result.predictions.values() for row in rows]
        answered = [row for row in scored if isinstance(row, Prediction)]
        means = (known_mean(getattr(row, verdict) for row in answered) for verdict in VERDICTS)
        rows.append((result.arm.name, *map(percent, means)))
    return Sheet("Verdicts (per cent of the test answers)", ("arm", *VERDICTS), tuple(rows))


def curve_sheet(results: Sequence[EvaluatedArm], curves: Sequence[str]) -> Sheet:
    """Returns the mean of each curve over the first, middle and last third of the batches."""
    rows = []
    for result in results:
        for curve in curves if result.arm.trainer else ():
            lines = [series(totals["model"], curve) for totals in result.trainings]
            split = (np.array_split(np.array(line, object), len(THIRDS)) for line in lines)
            thirds = zip(*split, strict=True)
            means = (known_mean(np.concatenate(third)) for third in thirds)
            rows.append((result.arm.name, curve, *(number(third, 3) for third in means)))
    head = ("arm", "curve", *THIRDS)
    return Sheet("Curves (means over thirds of the batches)", head, tuple(rows), names=2)


def plot_curves(results: Sequence[EvaluatedArm], curves: Sequence[str], path: Path) -> None:
    """Draws one panel per curve, with a line per arm: means over its seeds."""
    with svg(path, len(curves), 4 * len(curves), 3) as panels:
        for panel, curve in zip(panels, curves, strict=True):
            for result in results:
                lines = [series(totals["model"], curve) for totals in result.trainings if totals]
                means = [known_mean(values) for values in zip(*lines, strict=False)]
                if points := [(n, mean) for n, mean in enumerate(means, 1) if mean is not None]:
                    panel.plot(*zip(*points, strict=True), label=result.arm.name)
            panel.set_title(curve)
            panel.set_xlabel("batch")
        panels[0].legend()


def series(model: str, curve: str) -> list[float | None]:
    """Returns the values of a training's curve, one per batch; None if a batch has none."""
    # A batch may have several updates; the line of the first has the figures of its rollouts.
    return [line.get(curve) for line in read_metrics(Path(model)) if "rollouts" in line]
