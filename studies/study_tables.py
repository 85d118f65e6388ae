"""Reports the results of a learning study: arms, claims with intervals, and strata.

Written as Markdown, CSV and a plot into `study/` of the run folder, and printed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, stdev

import numpy as np

from branchwise.analysis import Interval, Scored, crossed_bootstrap, interval
from branchwise.base import NONE, Sheet, atomic_write_text, known_mean, number, percent
from branchwise.runs import StudyRunner, svg, write_sheets
from branchwise.types import Prediction, QuestionKey

from .arms import EvaluatedArm, mean_of
from .significance import holm, permutation_p

ANSWER_HEAD = ("arm", "seed", "source", "question", "em", "f1")
PAPER = "paper (other models and data)"
"""Head of the column with the paper's own results."""


@dataclass(frozen=True)
class Claim:
    """The difference `arm` − `baseline`; the study is designed for the primary ones.

    `paper` is the same difference in the paper.
    """

    arm: str
    baseline: str
    primary: bool = False
    paper: str = ""

    @property
    def name(self) -> str:
        return f"{self.arm} − {self.baseline}"


@dataclass(frozen=True)
class Stratum:
    """A group of questions, selected by their predictions; its results are descriptive."""

    name: str
    holds: Callable[[Scored], bool]


@dataclass(frozen=True)
class MeasuredClaim:
    """A claim as measured, in [−1, 1].

    Attributes:
        em, f1: Mean difference over questions and seeds, with the interval over both. With one
            training per arm the interval is over questions alone.
        adjusted: `p` adjusted by Holm within its family (primary or not).
        disagree: Share of questions (mean over seeds) that only one of both answers right.
    """

    claim: Claim
    em: Interval
    f1: Interval
    p: float
    adjusted: float
    disagree: float


def write_report(
    runner: StudyRunner,
    name: str,
    results: Sequence[EvaluatedArm],
    claims: Sequence[Claim],
    strata: Sequence[Stratum] = (),
    *,
    more: Sequence[Sheet] = (),
    about: str = "",
) -> None:
    """Prints the tables, and writes them next to the journal; see module."""
    if runner.context.dry_run:
        return
    measured = findings({result.arm.name: result for result in results}, claims, runner.recipe.seed)
    sheets = [arm_sheet(results), claim_sheet(measured)]
    if strata:
        sheets.append(stratum_sheet(results, strata))
    answers = answer_sheet(results)
    atomic_write_text(runner.folder / f"{name}-answers.csv", answers.csv())
    axis = f"EM, points (95 % interval over {interval_scope([row.em for row in measured])})"
    draw(claim_bars(measured), runner.folder / f"{name}.svg", axis)
    write_sheets(
        runner,
        name,
        [*sheets, *more],
        f"{about} {minimum_detectable_effect([row.em for row in measured])}".strip(),
    )


def answer_sheet(results: Sequence[EvaluatedArm]) -> Sheet:
    """Returns the scores of every answer, for `benchmarks.pooled_answers`."""
    rows = tuple(
        (result.arm.name, str(seed), row.source, row.question_id, f"{row.em:g}", f"{row.f1:g}")
        for result in results
        for seed, rows in result.predictions.items()
        for row in rows
        if row.em is not None and row.f1 is not None
    )
    return Sheet("Answers", ANSWER_HEAD, rows)


def findings(
    results: Mapping[str, EvaluatedArm], claims: Sequence[Claim], seed: int
) -> list[MeasuredClaim]:
    """Returns the claims whose arms were evaluated.

    P-values are adjusted by Holm, separately for primary and other claims.
    """
    measured = [
        _finding(claim, results[claim.arm], results[claim.baseline], seed)
        for claim in claims
        if claim.arm in results and claim.baseline in results
        if all(arm.predictions for arm in paired(results[claim.arm], results[claim.baseline]))
    ]
    adjusted: dict[str, float] = {}
    for primary in (True, False):
        family = [row for row in measured if row.claim.primary is primary]
        for row, p in zip(family, holm([row.p for row in family]), strict=True):
            adjusted[row.claim.name] = p
    return [replace(row, adjusted=adjusted[row.claim.name]) for row in measured]


def _finding(claim: Claim, arm: EvaluatedArm, base: EvaluatedArm, seed: int) -> MeasuredClaim:
    arm, base = paired(arm, base)
    keys = sorted(shared_questions([arm, base]))
    em = [scores(result, keys, "em") for result in (base, arm)]
    f1 = [scores(result, keys, "f1") for result in (base, arm)]
    p = permutation_p(*em, seed=seed)
    return MeasuredClaim(
        claim,
        crossed_bootstrap(*em, seed=seed),
        crossed_bootstrap(*f1, seed=seed),
        p,
        p,
        float(np.abs(em[1] - em[0]).mean()),
    )


def paired(arm: EvaluatedArm, base: EvaluatedArm) -> tuple[EvaluatedArm, EvaluatedArm]:
    """Returns both with the seeds that both were trained with, in order.

    An untrained policy has one seed, and is compared with every seed of the other.
    """
    seeds = arm.predictions.keys() & base.predictions.keys()
    if not (arm.arm.trainer and base.arm.trainer):
        return arm, base
    both = [
        replace(result, predictions={seed: result.predictions[seed] for seed in sorted(seeds)})
        for result in (arm, base)
    ]
    return both[0], both[1]


def _answerable(row: Scored) -> bool:
    return row.em is not None


def shared_questions(
    results: Sequence[EvaluatedArm], counts: Callable[[Scored], bool] = _answerable
) -> set[QuestionKey]:
    """Returns the questions that every policy was asked: by default the answerable ones, so that a
    failure counts as wrong.
    """
    questions = [
        {_key(row) for row in rows if counts(row)}
        for result in results
        for rows in result.predictions.values()
    ]
    return set.intersection(*questions) if questions else set()


def scores(result: EvaluatedArm, keys: Sequence[QuestionKey], metric: str) -> np.ndarray:
    """Returns scores of shape (questions, seeds)."""
    columns = []
    for rows in result.predictions.values():
        rows_by_question = {_key(row): row for row in rows}
        columns.append([getattr(rows_by_question[key], metric) for key in keys])
    return np.array(columns, dtype=np.float64).T


def _key(row: Scored) -> QuestionKey:
    return row.source, row.question_id


_ARM_HEAD = (
    "arm", "seeds", "questions", "failed", "EM", "SD", "F1", "recall", "steps", "searches",
    "invalid %", "forced %",
)  # fmt: skip
_REFUSAL_HEAD = ("backtracks", "refused %", "refusal precision", "refusal recall")
_TRAINING_HEAD = ("pairs", "steps trained", "train s", "KL", "margin", "accuracy")


def arm_sheet(results: Sequence[EvaluatedArm]) -> Sheet:
    """Returns every arm: scores (failures count as wrong), behaviour and training.

    Backtracks and refusals have columns only if a question was unanswerable.
    """
    every = (row for result in results for rows in result.predictions.values() for row in rows)
    refusable = any(row.em is None for row in every)
    head = (*_ARM_HEAD, *_REFUSAL_HEAD * refusable, *_TRAINING_HEAD)
    rows = tuple(
        (
            *_arm_cells(result),
            *(_refusal_cells(result) if refusable else ()),
            *_training_cells(result),
        )
        for result in results
    )
    sheet = Sheet("Arms (per cent; means over seeds)", head, rows)
    return sheet.with_column(PAPER, [result.arm.paper for result in results])


def _arm_cells(result: EvaluatedArm) -> tuple[str, ...]:
    by_seed = list(result.predictions.values())
    rows = [row for seed_rows in by_seed for row in seed_rows]
    answered = [row for row in rows if isinstance(row, Prediction)]
    em = [
        mean
        for seed_rows in by_seed
        if (mean := known_mean(row.em for row in seed_rows)) is not None
    ]
    return (
        f"{result.arm.name} (left out: {result.left_out})" if result.left_out else result.arm.name,
        str(len(by_seed)),
        str(sum(row.em is not None for row in rows) // max(len(by_seed), 1)),
        str(len(rows) - len(answered)),
        percent(known_mean(em)),
        percent(stdev(em)) if len(em) > 1 else NONE,
        percent(known_mean(row.f1 for row in rows)),
        percent(known_mean(row.supporting_recall for row in answered)),
        number(known_mean(row.steps for row in answered)),
        number(known_mean(row.searches for row in answered)),
        percent(known_mean(not row.format_ok for row in answered)),
        percent(known_mean(row.forced for row in answered)),
    )


def _refusal_cells(result: EvaluatedArm) -> tuple[str, ...]:
    """Returns backtracks and refusals over all seeds; a failed question is not refused."""
    rows = [row for seed_rows in result.predictions.values() for row in seed_rows]
    answered = [row for row in rows if isinstance(row, Prediction)]
    refused = [row for row in answered if row.refused]
    unanswerable = [row for row in rows if row.em is None]
    return (
        number(known_mean(row.backtracks for row in answered), 2),
        percent(known_mean(row.refused for row in answered)),
        percent(known_mean(row.em is None for row in refused)),
        percent(known_mean(isinstance(row, Prediction) and row.refused for row in unanswerable)),
    )


def _training_cells(result: EvaluatedArm) -> tuple[str, ...]:
    """Returns the training columns; KL is empty for off-policy pairs (`train_dpo`)."""
    allow_off_policy_pairs = result.arm.training.get("allow_off_policy_pairs", False)

    def learned(*path: str) -> float | None:
        return mean_of(result.trainings, *path)

    return (
        number(learned("examples"), 0),
        number(learned("steps"), 0),
        number(learned("seconds"), 0),
        number(None if allow_off_policy_pairs else learned("movement", "kl"), 3),
        number(learned("movement", "margin"), 3),
        number(learned("movement", "accuracy"), 2),
    )


def interval_scope(intervals: Iterable[Interval]) -> str:
    """Describes the scope of a table's intervals."""
    if max((bounds.seeds for bounds in intervals), default=1) > 1:
        return "questions and seeds"
    return "questions; one training per arm, so training variance is not included"


def minimum_detectable_effect(
    intervals: Sequence[Interval], metric: str = "difference in EM", unit: str = "points"
) -> str:
    """Describes the effect that a table of this size detects four times in five.

    Half the width of a 95 % interval is 1.96 standard errors. A test detects an effect of 1.96 +
    0.84 standard errors with a power of 80 %.

    Args:
        intervals: Intervals of the table, in [−1, 1]; the widest one counts.
        metric: Name of the metric, such as "difference in EM".
        unit: Name of a hundredth of the metric.
    """
    widest = max(intervals, key=lambda bounds: bounds.high - bounds.low, default=None)
    if widest is None:
        return ""
    error = (widest.high - widest.low) / 2 / _Z_LEVEL
    effect = 100 * (_Z_LEVEL + _Z_POWER) * error
    return (
        f"{widest.n} questions detect a true {metric} of {effect:.1f} {unit} four times in five "
        "(by the widest interval), and smaller ones less often."
    )


_Z_LEVEL, _Z_POWER = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)


def claim_sheet(measured: Sequence[MeasuredClaim]) -> Sheet:
    """Returns one row per claim; the primary ones are marked."""
    head = ("difference", "EM [95 %]", "p", "p (Holm)", "F1 [95 %]", "disagree %", "questions")
    rows = tuple(
        (
            f"{row.claim.name}{' (primary)' if row.claim.primary else ''}",
            interval(row.em),
            f"{row.p:.4f}",
            f"{row.adjusted:.4f}",
            interval(row.f1),
            percent(row.disagree),
            str(row.em.n),
        )
        for row in measured
    )
    title = f"Claims (points; intervals over {interval_scope([row.em for row in measured])})"
    sheet = Sheet(title, head, rows)
    return sheet.with_column(PAPER, [row.claim.paper for row in measured])


def stratum_sheet(results: Sequence[EvaluatedArm], strata: Sequence[Stratum]) -> Sheet:
    """Returns the EM of every arm on every stratum, as the mean over questions and seeds."""

    def cell(result: EvaluatedArm, stratum: Stratum) -> str:
        rows = [
            row
            for seed_rows in result.predictions.values()
            for row in seed_rows
            if stratum.holds(row)
        ]
        return percent(known_mean(row.em for row in rows))

    rows = tuple(
        (result.arm.name, *(cell(result, stratum) for stratum in strata)) for result in results
    )
    return Sheet("Strata (EM, per cent)", ("arm", *(stratum.name for stratum in strata)), rows)


@dataclass(frozen=True)
class Bar:
    """An interval in a plot, in [−1, 1]; the strong bars are the plot's subject."""

    name: str
    low: float
    mean: float
    high: float
    strong: bool = True


def claim_bars(measured: Sequence[MeasuredClaim]) -> list[Bar]:
    """Returns the EM differences, the primary ones strong."""
    return [
        Bar(row.claim.name, row.em.low, row.em.mean, row.em.high, row.claim.primary)
        for row in measured
    ]


def draw(bars: Sequence[Bar], path: Path, axis: str, no_effect: float = 0.0) -> None:
    """Draws a forest plot as SVG.

    Args:
        axis: Label of the x-axis; values are in per cent or points.
        no_effect: Value of "no effect", in [−1, 1].
    """
    with svg(path, 1, 7, 0.5 * len(bars) + 1.2) as (axes,):
        for place, bar in enumerate(reversed(bars)):
            colour = "black" if bar.strong else "grey"
            axes.plot([100 * bar.low, 100 * bar.high], [place, place], color=colour)
            axes.plot([100 * bar.mean], [place], "o", color=colour)
        axes.axvline(100 * no_effect, color="lightgrey", zorder=0)
        axes.set_yticks(range(len(bars)), [bar.name for bar in reversed(bars)])
        axes.set_xlabel(axis)
