"""`make study STUDY=evo-schedules`: does a schedule within the episode save searches?

The study covers EVO-RAG's table 4, section 5.2 (11.5 → 9.8 searches), figure 4 and table 7. An arm
learns its schedule in two steps from one warm start: DPO on the trees' pairs as Discovery labels
them, then, from that policy, DPO on the pairs as Refinement labels them. An arm without stages
takes both steps on the same pairs, so that all arms train equally long. The baselines are the start
and DPO on the answer alone: the paper's "no reward" is the former in section 4.2 and the latter in
section 5.1. The primary comparison is the EM of time-dynamic against two-stage, to be read with the
table of searches.

Differences from the paper: both steps use the same trees, grown by the warm start, so Refinement
learns from states that the policy after Discovery might not reach
(`training.dpo.allow_off_policy_pairs`); labels, not a reward model, order the pairs. `branchwise
curriculum` grows new trees between the steps.

The differences that this number of questions can detect are printed with the tables. Showing that
EM is at most 2 points lower takes about 2,000 questions if it is in fact equal (`--set
evaluation.limit=2000`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from branchwise.analysis import ASSUMED_OVERLAP, COMPARISONS, Effect, counts, simulate_suppression
from branchwise.base import NONE, Sheet, atomic_write_text
from branchwise.rewards import EvoRagSettings, query_similarity
from branchwise.runs import (
    STAGES,
    Recipe,
    Study,
    StudyRunner,
    draw_weights,
    evaluation_data,
    settings_of,
)

from ..arms import START, Arm, EvaluatedArm
from ..study_tables import Claim
from .distributions import distribution_sheet, distributions, draw_distributions
from .shared import IN_TWO_STEPS, TEST, RewardStudy, two_steps
from .traces import trace_text

NAME = "evo-schedules"

ARMS = (
    Arm(START, paper="EM 53.1, F1 66.7 (section 4.2)"),
    two_steps("answer-only", schedule="answer-only", paper="EM 53.1, F1 66.7 (section 5.1)"),
    two_steps("static", schedule="static"),
    two_steps("two-stage", schedule="two-stage", paper="EM 55.9, F1 69.5"),
    two_steps("time-dynamic", schedule="time-dynamic", paper="EM 57.6, F1 71.5"),
)
"""Paper: Qwen3-8B, table 4."""

CLAIMS = (
    Claim("time-dynamic", "two-stage", primary=True, paper="+1.7 (Qwen), +1.8, −1.8 (LLaMA)"),
    Claim("time-dynamic", START),
    Claim("two-stage", START),
    Claim("static", START),
    Claim("answer-only", START),
    Claim("time-dynamic", "static"),
    Claim("time-dynamic", "answer-only", paper="+4.5 (Qwen), +4.2, +2.7"),
)

SAVED = (
    Claim("time-dynamic", "two-stage", paper="15 % (11.5 → 9.8 steps)"),
    Claim("time-dynamic", START),
    Claim("two-stage", START),
    Claim("static", START),
    Claim("answer-only", START),
)

TRACED = ("answer-only", "two-stage", "time-dynamic")
"""Arms in the columns of table 7."""


def evo_schedules(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    runner.context.console.print(silence_sheet(runner.recipe).text())
    RewardStudy(NAME, ARMS, CLAIMS, SAVED, note=IN_TWO_STEPS, more_sheets=_more)(runner)


def _more(runner: StudyRunner, results: Sequence[EvaluatedArm]) -> tuple[Sheet, ...]:
    similarity = query_similarity()
    spread = distributions(results, similarity)
    draw_distributions(spread, runner.folder / f"{NAME}-distributions.svg")
    draw_weights(runner.recipe, settings_of(runner.recipe), runner.folder / f"{NAME}-weights.svg")
    shown_results = [result for result in results if result.arm.name in TRACED]
    questions = evaluation_data(runner.recipe_with(TEST)).questions
    text = trace_text(shown_results, questions, similarity)
    atomic_write_text(runner.folder / f"{NAME}-traces.md", text)
    return distribution_sheet(spread), silence_sheet(runner.recipe)


def silence_sheet(recipe: Recipe) -> Sheet:
    """Returns the effect of every schedule on comparisons of known order.

    See `analysis.suppression`.
    """
    columns = {
        name: counts(
            simulate_suppression(settings, recipe.agent.max_steps, min_gap=recipe.pairs.min_gap)
        )
        for name, settings in _schedules(recipe)
    }
    rows = tuple(
        (
            comparison.name,
            *(_effect_cell(column.get(comparison.name)) for column in columns.values()),
        )
        for comparison in COMPARISONS
    )
    title = (
        "Comparisons (policy calls: kept, silenced, turned; gap of "
        f"{recipe.pairs.min_gap}, sub-queries at a cosine of {ASSUMED_OVERLAP})"
    )
    return Sheet(title, ("better, worse", *columns), rows)


def _effect_cell(effects: Counter[Effect] | None) -> str:
    return ", ".join(str(effects[effect]) for effect in get_args(Effect)) if effects else NONE


def _schedules(recipe: Recipe) -> Iterator[tuple[str, EvoRagSettings]]:
    """Yields the schedules of the arms; those with stages once per stage."""
    rewards = settings_of(recipe)["refinement"]
    for schedule in ("answer-only", "static"):
        yield schedule, rewards.model_copy(update={"schedule": schedule})
    for schedule in ("two-stage", "time-dynamic"):
        for stage in STAGES:
            staged = {"schedule": schedule, "stage": stage}
            yield f"{schedule}, {stage}", rewards.model_copy(update=staged)


STUDY = Study(evo_schedules, recipe="evo-studies", seeds=(0,))
