"""Plots the curves of an outcome RL training."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from base.text import Log
from runs.studies.output import svg
from training.curves import read_metrics

CURVES = "curves.svg"

PANELS: Mapping[str, Sequence[str]] = {
    "reward": ("reward",),
    "answers": ("em", "dev_em", "answer_rate", "format_ok"),
    "tokens": ("policy_tokens", "total_tokens"),
    "searches": ("retrievals", "valid_searches", "copied"),
    "divergence": ("kl", "entropy"),
    "update": ("silent_share", "clip_share", "grad_norm"),
    "seconds": ("sample_s", "sync_s", "train_s"),
}
"""Title of each panel, and the names in `metrics.jsonl` that it shows."""


def plot_curves(model: Path, log: Log) -> None:
    """Draws `curves.svg` from `metrics.jsonl`; only logs a hint if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        log(f"{model / CURVES} was not drawn: run `make setup EXTRAS=study`")
        return
    lines = read_metrics(model)
    components = sorted({name for line in lines for name in line if name.startswith("reward/")})
    panels = {**PANELS, "reward": ("reward", *components)}
    shown = {title: found for title, names in panels.items() if (found := _series(lines, names))}
    with svg(model / CURVES, len(shown), 3 * len(shown), 2.6) as axes:
        for axis, (title, series) in zip(axes, shown.items(), strict=True):
            for name, points in series.items():
                axis.plot(*zip(*points, strict=True), marker=".", label=name)
            axis.set_title(title)
            axis.set_xlabel("step")
            axis.legend(fontsize="x-small")


def _series(
    lines: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[tuple[int, float]]]:
    found = {
        name: [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        for name in names
    }
    return {name: points for name, points in found.items() if points}
