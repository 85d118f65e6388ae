"""`make schedule`: EVO-RAG's reward weights over an episode, and the comparisons that they silence.

    branchwise schedule --config configs/evo-rag.yaml

Prints the weights of both stages at every policy call (section 3.6 and table 1), and how many
comparisons of two next steps they keep, silence or turn around under the threshold of the pairs
(`pairs.min_gap`; see `analysis.suppression`). Tables and plot are in `study/` of the run folder.
"""

from collections import Counter
from collections.abc import Mapping
from typing import get_args

from branchwise.analysis import ASSUMED_OVERLAP, counts, simulate_suppression
from branchwise.analysis import Effect as Verdict
from branchwise.base import Sheet, atomic_write_text, number
from branchwise.rewards import REWARDS, EvoRagSettings
from branchwise.runs import (
    STAGES,
    STUDY,
    Recipe,
    StageContext,
    StageName,
    StageResult,
    check_run_folder,
    draw_weights,
    episode,
    require_matplotlib,
    settings_of,
)

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Compared = Mapping[str, Counter[Verdict]]


def schedule(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    stages = settings_of(context.recipe)
    if not context.dry_run:
        require_matplotlib()
        check_run_folder(context.run)
    calls, min_gap = context.recipe.agent.max_steps, context.recipe.pairs.min_gap
    compared: dict[StageName, Compared] = {
        stage: counts(simulate_suppression(settings, calls, min_gap=min_gap))
        for stage, settings in stages.items()
    }
    sheets = {str(stage): weight_sheet(context.recipe, stages[stage]) for stage in stages}
    sheets["comparisons"] = comparison_sheet(context.recipe, compared)
    for sheet in sheets.values():
        context.console.print(sheet.text())
    silenced = {
        stage: {name: dict(verdicts) for name, verdicts in comparisons.items()}
        for stage, comparisons in compared.items()
    }
    if context.dry_run:
        return StageResult({"comparisons": silenced, "dry_run": True})
    folder = context.run / STUDY
    for name, sheet in sheets.items():
        atomic_write_text(folder / f"schedule-{name}.csv", sheet.csv())
    atomic_write_text(folder / "schedule.md", "\n".join(s.markdown() for s in sheets.values()))
    draw_weights(context.recipe, stages, folder / "schedule.svg")
    context.log(f"schedule: tables and plot in {folder}")
    return StageResult({"comparisons": silenced, "folder": str(folder)})


def weight_sheet(recipe: Recipe, settings: EvoRagSettings) -> Sheet:
    """Returns a row per policy call: its index t, the progress p(t), and the weight of each
    reward.
    """
    rows = tuple(
        (str(t), number(p, 2), *(number(at[name], 3) for name in REWARDS))
        for t, p, at in episode(recipe, settings)
    )
    title = f"{settings.stage.capitalize()}: weights of the schedule {settings.schedule}"
    return Sheet(title, ("t", "p", *REWARDS), rows, names=0)


def comparison_sheet(recipe: Recipe, by_stage: Mapping[StageName, Compared]) -> Sheet:
    """Tables how many policy calls keep, silence and reverse every comparison, by stage."""
    rows = tuple(
        (name, *(str(counted[name][v]) for counted in by_stage.values() for v in VERDICTS))
        for name in by_stage[STAGES[0]]
    )
    head = ("better, worse", *(f"{stage}: {verdict}" for stage in by_stage for verdict in VERDICTS))
    at = f"at a gap of {recipe.pairs.min_gap}, sub-queries at a cosine of {ASSUMED_OVERLAP}"
    return Sheet(f"Comparisons {at} (policy calls)", head, rows)
