"""What a study of learning found: the arms, the claims with their intervals, and all that was run.

Written as Markdown, CSV and a plot into `study/` of the run folder, and printed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from evaluation.sheet import NONE, Sheet, number, percent, points
from evaluation.significance import Interval, crossed_bootstrap, holm, permutation_p
from pipelines.studies.arms import Examined, mean_of
from pipelines.studies.lab import Lab
from storage.atomic import atomic_write_text
from storage.records import Prediction

Key = tuple[str, str]
"""Source and id of a question."""


@dataclass(frozen=True)
class Claim:
    """`arm` − `baseline`; the primary ones are what the study was made for."""

    arm: str
    baseline: str
    primary: bool = False

    @property
    def name(self) -> str:
        return f"{self.arm} − {self.baseline}"


@dataclass(frozen=True)
class Stratum:
    """Some of the questions, told by their predictions; figures of it are descriptive."""

    name: str
    holds: Callable[[Prediction], bool]


@dataclass(frozen=True)
class Finding:
    """A claim as measured, in [−1, 1].

    Attributes:
        em, f1: mean difference over questions and seeds, with the interval over both.
        p: of the permutation test on EM; `adjusted` by Holm within its family.
        disagree: share of questions (mean over seeds) that one of both alone answers right.
    """

    claim: Claim
    em: Interval
    f1: Interval
    p: float
    adjusted: float
    disagree: float


def write_report(
    lab: Lab,
    name: str,
    done: Sequence[Examined],
    claims: Sequence[Claim],
    strata: Sequence[Stratum] = (),
) -> None:
    """Print the tables, and keep them beside the journal; see module."""
    if lab.call.dry_run:
        return
    found = findings({one.arm.name: one for one in done}, claims, lab.recipe.seed)
    sheets = [arm_sheet(done), claim_sheet(found)]
    if strata:
        sheets.append(stratum_sheet(done, strata))
    for sheet in sheets:
        lab.call.console.print(sheet.text())
    write_sheets(lab, name, sheets)
    plot = lab.folder / f"{name}.svg"
    draw(found, plot)
    lab.call.say(f"study: tables and {plot.name} in {lab.folder}")


def write_sheets(lab: Lab, name: str, sheets: Sequence[Sheet]) -> None:
    """Markdown with the commands behind it, and a CSV for every table."""
    for sheet in sheets:
        slug = sheet.title.split(" (")[0].lower().replace(" ", "-")
        atomic_write_text(lab.folder / f"{name}-{slug}.csv", sheet.csv())
    parts = [sheet.markdown() for sheet in (*sheets, run_sheet(lab))]
    atomic_write_text(lab.folder / f"{name}.md", "\n".join(parts))


def findings(done: Mapping[str, Examined], claims: Sequence[Claim], seed: int) -> list[Finding]:
    """The claims whose arms were examined; Holm over the primary and over the other ones."""
    measured = [
        _finding(claim, done[claim.arm], done[claim.baseline], seed)
        for claim in claims
        if claim.arm in done and claim.baseline in done
    ]
    adjusted: dict[str, float] = {}
    for primary in (True, False):
        family = [one for one in measured if one.claim.primary is primary]
        for one, p in zip(family, holm([one.p for one in family]), strict=True):
            adjusted[one.claim.name] = p
    return [
        Finding(one.claim, one.em, one.f1, one.p, adjusted[one.claim.name], one.disagree)
        for one in measured
    ]


def _finding(claim: Claim, arm: Examined, base: Examined, seed: int) -> Finding:
    keys = sorted(shared_questions([arm, base]))
    em = [scores(one, keys, "em") for one in (base, arm)]
    f1 = [scores(one, keys, "f1") for one in (base, arm)]
    p = permutation_p(*em, seed=seed)
    return Finding(
        claim,
        crossed_bootstrap(*em, seed=seed),
        crossed_bootstrap(*f1, seed=seed),
        p,
        p,
        float(np.abs(em[1] - em[0]).mean()),
    )


def shared_questions(done: Sequence[Examined]) -> set[Key]:
    """Answerable questions that every policy of all arms has answered."""
    asked = [
        {_key(row) for row in rows if row.em is not None}
        for one in done
        for rows in one.predictions.values()
    ]
    return set.intersection(*asked) if asked else set()


def scores(done: Examined, keys: Sequence[Key], metric: str) -> np.ndarray:
    """Scores of shape (questions, seeds)."""
    columns = []
    for rows in done.predictions.values():
        found = {_key(row): getattr(row, metric) for row in rows}
        columns.append([found[key] for key in keys])
    return np.array(columns, dtype=np.float64).T


def _key(row: Prediction) -> Key:
    return row.source, row.question_id


def arm_sheet(done: Sequence[Examined]) -> Sheet:
    """Every arm: scores, behaviour, and what its training did."""
    head = (
        "arm", "seeds", "questions", "EM", "SD", "F1", "recall", "steps", "searches", "invalid %",
        "forced %", "pairs", "steps trained", "train s", "KL", "margin", "accuracy",
    )  # fmt: skip
    return Sheet("Arms (per cent; means over seeds)", head, tuple(_arm_row(one) for one in done))


def _arm_row(done: Examined) -> tuple[str, ...]:
    rows = [row for asked in done.predictions.values() for row in asked]
    by_seed = [
        fmean(row.em for row in asked if row.em is not None) for asked in done.predictions.values()
    ]
    scored = [row for row in rows if row.em is not None]
    recall = [row.supporting_recall for row in rows if row.supporting_recall is not None]

    def learned(*path: str) -> float | None:
        return mean_of(done.trainings, *path)

    return (
        done.arm.name,
        str(len(by_seed)),
        str(len(scored) // max(len(by_seed), 1)),
        percent(fmean(by_seed)),
        percent(stdev(by_seed)) if len(by_seed) > 1 else NONE,
        percent(fmean(row.f1 or 0.0 for row in scored)),
        percent(fmean(recall)) if recall else NONE,
        number(fmean(row.steps for row in rows)),
        number(fmean(row.searches for row in rows)),
        percent(fmean(not row.format_ok for row in rows)),
        percent(fmean(row.forced for row in rows)),
        number(learned("examples"), 0),
        number(learned("steps"), 0),
        number(learned("seconds"), 0),
        number(learned("last", "kl"), 3),
        number(learned("last", "margin"), 2),
        number(learned("last", "accuracy"), 2),
    )


def claim_sheet(found: Sequence[Finding]) -> Sheet:
    """Every claim, the primary ones marked."""
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
    return Sheet("Claims (points; paired over questions and seeds)", head, rows)


def stratum_sheet(done: Sequence[Examined], strata: Sequence[Stratum]) -> Sheet:
    """EM of every arm on every stratum, mean over questions and seeds."""

    def cell(one: Examined, stratum: Stratum) -> str:
        rows = [row for asked in one.predictions.values() for row in asked if stratum.holds(row)]
        scored = [row.em for row in rows if row.em is not None]
        return percent(fmean(scored)) if scored else NONE

    rows = tuple((one.arm.name, *(cell(one, stratum) for stratum in strata)) for one in done)
    return Sheet("Strata (EM, per cent)", ("arm", *(one.name for one in strata)), rows)


def interval(of: Interval) -> str:
    """Mean and bounds in points; a star where 0 is outside."""
    star = " *" if of.excludes_zero else ""
    return f"{points(of.mean)} [{points(of.low)}, {points(of.high)}]{star}"


def run_sheet(lab: Lab) -> Sheet:
    """Every command that was started, failed and repeated ones included."""
    rows = tuple(
        (
            one.command,
            str(one.attempts),
            number(one.seconds, 0),
            NONE if one.exit_code is None else str(one.exit_code),
        )
        for one in lab.journal.started()
    )
    return Sheet("All runs started", ("command", "attempts", "seconds", "exit code"), rows)


def draw(found: Sequence[Finding], path: Path) -> None:
    """A forest plot of the EM differences."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.5 * len(found) + 1.2), layout="constrained")
    for place, one in enumerate(reversed(found)):
        low, mean, high = (100 * x for x in (one.em.low, one.em.mean, one.em.high))
        colour = "black" if one.claim.primary else "grey"
        axes.plot([low, high], [place, place], color=colour)
        axes.plot([mean], [place], "o", color=colour)
    axes.axvline(0, color="lightgrey", zorder=0)
    axes.set_yticks(range(len(found)), [one.claim.name for one in reversed(found)])
    axes.set_xlabel("EM, points (95 % interval over questions and seeds)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
