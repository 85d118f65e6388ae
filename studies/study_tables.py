"""Reports the results of a learning study: arms, claims with intervals, and strata.

Written as Markdown, CSV and a plot into `study/` of the run folder, and printed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean, stdev

import numpy as np

from branchwise.analysis import Interval, Scored, crossed_bootstrap, holm, interval, permutation_p
from branchwise.base import NONE, Sheet, atomic_write_text, number, percent
from branchwise.runs import StudyRunner, svg, write_sheets
from branchwise.types import Prediction, QuestionKey

from .arms import EvaluatedArm, mean_of

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
    done: Sequence[EvaluatedArm],
    claims: Sequence[Claim],
    strata: Sequence[Stratum] = (),
    *,
    more: Sequence[Sheet] = (),
    about: str = "",
) -> None:
    """Prints the tables, and writes them next to the journal; see module."""
    if runner.context.dry_run:
        return
    found = findings({one.arm.name: one for one in done}, claims, runner.recipe.seed)
    sheets = [arm_sheet(done), claim_sheet(found)]
    if strata:
        sheets.append(stratum_sheet(done, strata))
    answers = answer_sheet(done)
    atomic_write_text(runner.folder / f"{name}-answers.csv", answers.csv())
    axis = f"EM, points (95 % interval over {interval_scope([one.em for one in found])})"
    draw(claim_bars(found), runner.folder / f"{name}.svg", axis)
    write_sheets(
        runner,
        name,
        [*sheets, *more],
        f"{about} {minimum_detectable_effect([one.em for one in found])}".strip(),
    )


def answer_sheet(done: Sequence[EvaluatedArm]) -> Sheet:
    """Returns the scores of every answer, for `benchmarks.pooled_answers`."""
    rows = tuple(
        (one.arm.name, str(seed), row.source, row.question_id, f"{row.em:g}", f"{row.f1:g}")
        for one in done
        for seed, asked in one.predictions.items()
        for row in asked
        if row.em is not None and row.f1 is not None
    )
    return Sheet("Answers", ANSWER_HEAD, rows)


def findings(
    done: Mapping[str, EvaluatedArm], claims: Sequence[Claim], seed: int
) -> list[MeasuredClaim]:
    """Returns the claims whose arms were evaluated.

    P-values are adjusted by Holm, separately for primary and other claims.
    """
    measured = [
        _finding(claim, done[claim.arm], done[claim.baseline], seed)
        for claim in claims
        if claim.arm in done and claim.baseline in done
        if all(one.predictions for one in paired(done[claim.arm], done[claim.baseline]))
    ]
    adjusted: dict[str, float] = {}
    for primary in (True, False):
        family = [one for one in measured if one.claim.primary is primary]
        for one, p in zip(family, holm([one.p for one in family]), strict=True):
            adjusted[one.claim.name] = p
    return [replace(one, adjusted=adjusted[one.claim.name]) for one in measured]


def _finding(claim: Claim, arm: EvaluatedArm, base: EvaluatedArm, seed: int) -> MeasuredClaim:
    arm, base = paired(arm, base)
    keys = sorted(shared_questions([arm, base]))
    em = [scores(one, keys, "em") for one in (base, arm)]
    f1 = [scores(one, keys, "f1") for one in (base, arm)]
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
        replace(one, predictions={seed: one.predictions[seed] for seed in sorted(seeds)})
        for one in (arm, base)
    ]
    return both[0], both[1]


def _answerable(row: Scored) -> bool:
    return row.em is not None


def shared_questions(
    done: Sequence[EvaluatedArm], asked: Callable[[Scored], bool] = _answerable
) -> set[QuestionKey]:
    """Returns the questions that every policy was asked: by default the answerable ones, so that a
    failure counts as wrong.
    """
    questions = [
        {_key(row) for row in rows if asked(row)}
        for one in done
        for rows in one.predictions.values()
    ]
    return set.intersection(*questions) if questions else set()


def scores(done: EvaluatedArm, keys: Sequence[QuestionKey], metric: str) -> np.ndarray:
    """Returns scores of shape (questions, seeds)."""
    columns = []
    for rows in done.predictions.values():
        found = {_key(row): row for row in rows}
        columns.append([getattr(found[key], metric) for key in keys])
    return np.array(columns, dtype=np.float64).T


def _key(row: Scored) -> QuestionKey:
    return row.source, row.question_id


_ARM_HEAD = (
    "arm", "seeds", "questions", "failed", "EM", "SD", "F1", "recall", "steps", "searches",
    "invalid %", "forced %",
)  # fmt: skip
_REFUSAL_HEAD = ("backtracks", "refused %", "refusal precision", "refusal recall")
_TRAINING_HEAD = ("pairs", "steps trained", "train s", "KL", "margin", "accuracy")


def arm_sheet(done: Sequence[EvaluatedArm]) -> Sheet:
    """Returns every arm: scores (failures count as wrong), behaviour and training.

    Backtracks and refusals have columns only if a question was unanswerable.
    """
    every = (row for one in done for asked in one.predictions.values() for row in asked)
    refusable = any(row.em is None for row in every)
    head = (*_ARM_HEAD, *_REFUSAL_HEAD * refusable, *_TRAINING_HEAD)
    rows = tuple(
        (*_arm_cells(one), *(_refusal_cells(one) if refusable else ()), *_training_cells(one))
        for one in done
    )
    sheet = Sheet("Arms (per cent; means over seeds)", head, rows)
    return sheet.with_column(PAPER, [one.arm.paper for one in done])


def _arm_cells(done: EvaluatedArm) -> tuple[str, ...]:
    by_seed = list(done.predictions.values())
    rows = [row for asked in by_seed for row in asked]
    own = [row for row in rows if isinstance(row, Prediction)]
    em = [mean for asked in by_seed if (mean := known_mean(row.em for row in asked)) is not None]
    return (
        f"{done.arm.name} (left out: {done.left_out})" if done.left_out else done.arm.name,
        str(len(by_seed)),
        str(sum(row.em is not None for row in rows) // max(len(by_seed), 1)),
        str(len(rows) - len(own)),
        percent(known_mean(em)),
        percent(stdev(em)) if len(em) > 1 else NONE,
        percent(known_mean(row.f1 for row in rows)),
        percent(known_mean(row.supporting_recall for row in own)),
        number(known_mean(row.steps for row in own)),
        number(known_mean(row.searches for row in own)),
        percent(known_mean(not row.format_ok for row in own)),
        percent(known_mean(row.forced for row in own)),
    )


def _refusal_cells(done: EvaluatedArm) -> tuple[str, ...]:
    """Returns backtracks and refusals over all seeds; a failed question is not refused."""
    rows = [row for asked in done.predictions.values() for row in asked]
    own = [row for row in rows if isinstance(row, Prediction)]
    refused = [row for row in own if row.refused]
    unanswerable = [row for row in rows if row.em is None]
    return (
        number(known_mean(row.backtracks for row in own), 2),
        percent(known_mean(row.refused for row in own)),
        percent(known_mean(row.em is None for row in refused)),
        percent(known_mean(isinstance(row, Prediction) and row.refused for row in unanswerable)),
    )


def _training_cells(done: EvaluatedArm) -> tuple[str, ...]:
    """Returns the training columns; KL is empty for off-policy pairs (`train_dpo`)."""
    allow_off_policy_pairs = done.arm.training.get("allow_off_policy_pairs", False)

    def learned(*path: str) -> float | None:
        return mean_of(done.trainings, *path)

    return (
        number(learned("examples"), 0),
        number(learned("steps"), 0),
        number(learned("seconds"), 0),
        number(None if allow_off_policy_pairs else learned("movement", "kl"), 3),
        number(learned("movement", "margin"), 3),
        number(learned("movement", "accuracy"), 2),
    )


def known_mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None without one."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def interval_scope(intervals: Iterable[Interval]) -> str:
    """Describes the scope of a table's intervals."""
    if max((one.seeds for one in intervals), default=1) > 1:
        return "questions and seeds"
    return "questions; one training per arm, so training variance is not included"


def minimum_detectable_effect(
    intervals: Sequence[Interval], what: str = "difference in EM", unit: str = "points"
) -> str:
    """Describes the effect that a table of this size detects four times in five.

    Half the width of a 95 % interval is 1.96 standard errors. A test detects an effect of 1.96 +
    0.84 standard errors with a power of 80 %.

    Args:
        intervals: Intervals of the table, in [−1, 1]; the widest one counts.
        what: Name of the metric, such as "difference in EM".
        unit: Name of a hundredth of the metric.
    """
    widest = max(intervals, key=lambda one: one.high - one.low, default=None)
    if widest is None:
        return ""
    error = (widest.high - widest.low) / 2 / _Z_LEVEL
    found = 100 * (_Z_LEVEL + _Z_POWER) * error
    return (
        f"{widest.n} questions detect a true {what} of {found:.1f} {unit} four times in five (by "
        "the widest interval), and smaller ones less often."
    )


_Z_LEVEL, _Z_POWER = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)


def claim_sheet(found: Sequence[MeasuredClaim]) -> Sheet:
    """Returns one row per claim; the primary ones are marked."""
    head = ("difference", "EM [95 %]", "p", "p (Holm)", "F1 [95 %]", "disagree %", "questions")
    rows = tuple(
        (
            f"{one.claim.name}{' (primary)' if one.claim.primary else ''}",
            interval(one.em),
            f"{one.p:.4f}",
            f"{one.adjusted:.4f}",
            interval(one.f1),
            percent(one.disagree),
            str(one.em.n),
        )
        for one in found
    )
    title = f"Claims (points; intervals over {interval_scope([one.em for one in found])})"
    sheet = Sheet(title, head, rows)
    return sheet.with_column(PAPER, [one.claim.paper for one in found])


def stratum_sheet(done: Sequence[EvaluatedArm], strata: Sequence[Stratum]) -> Sheet:
    """Returns the EM of every arm on every stratum, as the mean over questions and seeds."""

    def cell(one: EvaluatedArm, stratum: Stratum) -> str:
        rows = [row for asked in one.predictions.values() for row in asked if stratum.holds(row)]
        return percent(known_mean(row.em for row in rows))

    rows = tuple((one.arm.name, *(cell(one, stratum) for stratum in strata)) for one in done)
    return Sheet("Strata (EM, per cent)", ("arm", *(one.name for one in strata)), rows)


@dataclass(frozen=True)
class Bar:
    """An interval in a plot, in [−1, 1]; the strong bars are the plot's subject."""

    name: str
    low: float
    mean: float
    high: float
    strong: bool = True


def claim_bars(found: Sequence[MeasuredClaim]) -> list[Bar]:
    """Returns the EM differences, the primary ones strong."""
    return [
        Bar(one.claim.name, one.em.low, one.em.mean, one.em.high, one.claim.primary)
        for one in found
    ]


def draw(bars: Sequence[Bar], path: Path, axis: str, rest: float = 0.0) -> None:
    """Draws a forest plot as SVG.

    Args:
        axis: Label of the x-axis; values are in per cent or points.
        rest: Value of "no effect", in [−1, 1].
    """
    with svg(path, 1, 7, 0.5 * len(bars) + 1.2) as (axes,):
        for place, bar in enumerate(reversed(bars)):
            colour = "black" if bar.strong else "grey"
            axes.plot([100 * bar.low, 100 * bar.high], [place, place], color=colour)
            axes.plot([100 * bar.mean], [place], "o", color=colour)
        axes.axvline(100 * rest, color="lightgrey", zorder=0)
        axes.set_yticks(range(len(bars)), [bar.name for bar in reversed(bars)])
        axes.set_xlabel(axis)
