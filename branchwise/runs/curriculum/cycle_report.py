"""A curriculum as a table and plots of its cycles, and EVO-RAG's weights over an episode."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from branchwise.base import NONE, ConfigError, Sheet, number, percent
from branchwise.rewards import REWARDS, EvoRagSettings, Weights, weights

from ..recipe import Recipe
from ..studies.output import svg, write_sheets
from ..studies.study_runner import StudyRunner
from .cycle import STAGES, DevResult, StageName

PANELS: Mapping[str, Mapping[str, str]] = {
    "per cent": {"EM": "em", "F1": "f1"},
    "per question": {"searches": "searches", "backtracks": "backtracks"},
    "per cent of the questions": {"refused": "refused"},
}
"""Axes of the plot, each with its lines: label and field."""


def write_curriculum_report(
    runner: StudyRunner, results: Sequence[DevResult], chosen: Mapping[StageName, DevResult]
) -> None:
    """Prints the table; writes it, its plot and a plot of the weights next to the journal.

    Args:
        results: Dev results in the order of the cycles, the start first.
    """
    draw_course(results, runner.folder / "curriculum.svg")
    draw_weights(
        runner.recipe, settings_of(runner.recipe), runner.folder / "curriculum-weights.svg"
    )
    title = "Cycles (dev; EM and F1 over answerable questions)"
    rows = [_cells(result, chosen) for result in results]
    sheet = Sheet(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), names=4)
    write_sheets(runner, "curriculum", [sheet])


def _cells(result: DevResult, chosen: Mapping[StageName, DevResult]) -> dict[str, str]:
    """Returns the cells of a policy by column; shares in per cent."""
    return {
        "policy": result.name,
        "begun from": result.begun_from or NONE,
        "model": result.model,
        "best of": ", ".join(stage for stage, best in chosen.items() if best.name == result.name),
        "pairs": NONE if result.pairs is None else str(result.pairs),
        "questions": str(result.questions),
        "EM": percent(result.em),
        "F1": percent(result.f1),
        "searches": number(result.searches, 2),
        "backtracks": number(result.backtracks, 2),
        "refused": percent(result.refused),
        "refusal precision": percent(result.refusal_precision),
        "refusal recall": percent(result.refusal_recall),
    }


def draw_course(results: Sequence[DevResult], path: Path) -> None:
    """Plots the figures over the cycles as SVG."""
    names = [result.name for result in results]
    with svg(path, len(PANELS), 10, 3.2) as panels:
        for axes, (label, lines) in zip(panels, PANELS.items(), strict=True):
            for (name, field), style in zip(lines.items(), ("o-", "s--"), strict=False):
                axes.plot(names, _values(results, field), style, label=name)
            axes.set_ylabel(label)
            axes.margins(y=0.2)
            axes.set_ylim(bottom=0)
            axes.tick_params(axis="x", rotation=45)
            axes.legend()


def _values(results: Sequence[DevResult], field: str) -> list[float]:
    """Returns shares in per cent, with gaps for missing values."""
    scale = 1 if field in {"searches", "backtracks"} else 100
    values = [getattr(result, field) for result in results]
    return [float("nan") if value is None else scale * value for value in values]


ByStage = Mapping[StageName, EvoRagSettings]


def settings_of(recipe: Recipe) -> ByStage:
    """Returns the recipe's reward settings per stage.

    Raises:
        ConfigError: If the reward scheme does not have stages.
    """
    rewards = recipe.rewards
    if not isinstance(rewards, EvoRagSettings):
        raise ConfigError(
            f"rewards.scheme is `{rewards.scheme}`, which does not have a schedule; see "
            "configs/evo-rag.yaml"
        )
    return {stage: rewards.model_copy(update={"stage": stage}) for stage in STAGES}


def episode(recipe: Recipe, settings: EvoRagSettings) -> Iterator[tuple[int, float, Weights]]:
    """Yields t, p(t) and the weights for every policy call of an episode."""
    horizon = settings.horizon or recipe.agent.max_steps
    for t in range(recipe.agent.max_steps):
        yield t, min(t / horizon, 1.0), weights(settings, t / horizon)


def draw_weights(recipe: Recipe, stages: ByStage, path: Path) -> None:
    """Plots the weights over an episode as SVG, one panel per stage."""
    with svg(path, len(stages), 9, 3.6, sharey=True) as panels:
        for axes, (stage, settings) in zip(panels, stages.items(), strict=True):
            calls = list(episode(recipe, settings))
            for name in settings.components or REWARDS:
                axes.plot([t for t, _, _ in calls], [at[name] for _, _, at in calls], label=name)
            axes.set_title(stage.capitalize())
            axes.set_xlabel("policy call t")
        panels[0].set_ylabel("weight")
        lines = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(*lines, loc="outside right center")
