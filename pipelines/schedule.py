"""`make schedule`: what EVO-RAG's rewards weigh as an episode goes on, and what that silences.

    branchwise schedule --config configs/evo-rag.yaml

Prints the weights of both stages at every policy call (section 3.6 and table 1), and how many
comparisons of two next steps they keep, silence or turn around under the threshold of the pairs
(`pairs.min_gap`; see `rewards.silence`). Tables and plot lie in `study/` of the run folder.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from evaluation.sheet import Sheet, number
from pipelines.curricula.dev import STAGES, StageName
from pipelines.recipe import Recipe
from pipelines.run import STUDY, refuse_unusable
from pipelines.stage import Invocation, Outcome
from pipelines.study import require_matplotlib
from rewards.schedule import Weights, weights
from rewards.settings import REWARDS, EvoRagSettings
from rewards.silence import ASSUMED_OVERLAP, counts, silence
from rewards.silence import Outcome as Verdict
from storage.atomic import atomic_write_text
from storage.errors import ConfigError

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

ByStage = Mapping[StageName, EvoRagSettings]


def schedule(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    stages = settings_of(call.recipe)
    if not call.dry_run:
        require_matplotlib()
        refuse_unusable(call.run)
    sheets: dict[str, Sheet] = {
        **{str(stage): weight_sheet(call.recipe, settings) for stage, settings in stages.items()},
        "comparisons": comparison_sheet(call.recipe, stages),
    }
    for sheet in sheets.values():
        call.console.print(sheet.text())
    silenced = {
        stage: {name: dict(found) for name, found in _counts(call.recipe, settings).items()}
        for stage, settings in stages.items()
    }
    if call.dry_run:
        return Outcome({"comparisons": silenced, "dry_run": True})
    folder = call.run / STUDY
    for name, sheet in sheets.items():
        atomic_write_text(folder / f"schedule-{name}.csv", sheet.csv())
    atomic_write_text(folder / "schedule.md", "\n".join(s.markdown() for s in sheets.values()))
    draw_weights(call.recipe, stages, folder / "schedule.svg")
    call.say(f"schedule: tables and plot in {folder}")
    return Outcome({"comparisons": silenced, "folder": str(folder)})


def settings_of(recipe: Recipe) -> ByStage:
    """The recipe's rewards in either stage.

    Raises:
        ConfigError: it has none.
    """
    if recipe.evo_rag is None:
        raise ConfigError("evo_rag: is not set, so there is no schedule; see configs/evo-rag.yaml")
    return {stage: recipe.evo_rag.model_copy(update={"stage": stage}) for stage in STAGES}


def weight_sheet(recipe: Recipe, settings: EvoRagSettings) -> Sheet:
    """A row a policy call: its index t, the progress p(t), and what every reward weighs."""
    rows = tuple(
        (str(t), number(p, 2), *(number(at[name], 3) for name in REWARDS))
        for t, p, at in _calls(recipe, settings)
    )
    title = f"{settings.stage.capitalize()}: weights of the schedule {settings.schedule}"
    return Sheet(title, ("t", "p", *REWARDS), rows, names=0)


def comparison_sheet(recipe: Recipe, stages: ByStage) -> Sheet:
    """How many policy calls keep, silence and turn every comparison, by stage."""
    by_stage = {stage: _counts(recipe, settings) for stage, settings in stages.items()}
    rows = tuple(
        (name, *(str(found[name][verdict]) for found in by_stage.values() for verdict in VERDICTS))
        for name in by_stage[STAGES[0]]
    )
    head = ("better, worse", *(f"{stage}: {verdict}" for stage in stages for verdict in VERDICTS))
    at = f"at a gap of {recipe.pairs.min_gap}, sub-queries at a cosine of {ASSUMED_OVERLAP}"
    return Sheet(f"Comparisons {at} (policy calls)", head, rows)


def _counts(recipe: Recipe, settings: EvoRagSettings) -> Mapping[str, Counter[Verdict]]:
    return counts(silence(settings, recipe.agent.max_steps, min_gap=recipe.pairs.min_gap))


def _calls(recipe: Recipe, settings: EvoRagSettings) -> Iterator[tuple[int, float, Weights]]:
    """t, p(t) and the weights of every policy call of an episode."""
    horizon = settings.horizon or recipe.agent.max_steps
    for t in range(recipe.agent.max_steps):
        yield t, min(t / horizon, 1.0), weights(settings, t / horizon)


def draw_weights(recipe: Recipe, stages: ByStage, path: Path) -> None:
    """The weights over an episode, a panel a stage, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(stages), figsize=(9, 3.6), sharey=True, layout="constrained"
    )
    for axes, (stage, settings) in zip(panels, stages.items(), strict=True):
        calls = list(_calls(recipe, settings))
        for name in settings.rewards or REWARDS:
            axes.plot([t for t, _, _ in calls], [at[name] for _, _, at in calls], label=name)
        axes.set_title(stage.capitalize())
        axes.set_xlabel("policy call t")
    panels[0].set_ylabel("weight")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
