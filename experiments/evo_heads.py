"""`make study STUDY=evo-heads`: one head or seven? (EVO-RAG section 3.3: a loss of 0.71 or 0.62.)

Reward models on the siblings of the shared trees, measured on a fifth of the questions, others with
every seed: `component`, seven heads that learn each the order of its own reward's returns; `total`,
seven heads that all learn that of the weighted total, as the paper has it; and `single`, one head
on the total. Next to every figure: what the length of the steps alone would say.

The paper's seven heads learn one and the same problem. Heads that share nothing and begin at 0, as
ours do, then come to the same weights, so `total` and `single` agree up to rounding: whatever the
paper's difference is made of, it is not the number of heads. The loss of `component` is a mean over
seven other orders, some of them easy, and says nothing next to theirs. What can be compared is how
often a model's score orders siblings by the total.

Time on two cores: trees 10 minutes, once for all studies; then 9: reading the steps 3, once, and
half a minute a model, 15 of them with five seeds, the default. A dozen validation questions give an
accuracy that is good to several points; the deviation over the splits says how good.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from analysis.table import Sheet, number, percent
from experiments.arms import mean_of, numbers_of
from experiments.evo import OTHERS, TIME_DYNAMIC, trees_of
from experiments.report import PAPER, Bar, draw
from runs.study_runner import StageTotals, StudyRunner
from runs.study_tables import write_sheets

NAME = "evo-heads"

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "component": {"heads": "multi", "labels": "component"},
    "total": {"heads": "multi", "labels": "total"},
    "single": {"heads": "single", "labels": "total"},
}
PAPERS = {"total": "loss 0.62", "single": "loss 0.71"}

AXIS = "siblings that the score orders as the total does, % (mean and range over splits)"

TotalsByVariant = Mapping[str, Sequence[StageTotals]]
"""Totals of every split, by variant."""


def evo_heads(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    grown = runner.branchwise("annotate")
    found: dict[str, list[StageTotals]] = {name: [] for name in VARIANTS}
    for seed in runner.seeds:
        for name, variant in VARIANTS.items():
            settings = {
                **TIME_DYNAMIC,
                "seed": seed,
                "training.reward_model.split": seed,
                **{f"training.reward_model.{key}": value for key, value in variant.items()},
            }
            named = ("--name", f"heads-{name}-{seed}")
            found[name].append(
                runner.branchwise("train-rm", *named, settings=settings, after=grown)
            )
        if not runner.context.dry_run:
            draw(bars(found), runner.folder / f"{NAME}.svg", AXIS, rest=0.5)
            told = f"{trees_of(runner.recipe)} {OTHERS}"
            write_sheets(runner, NAME, [model_sheet(found), head_sheet(found)], told)


def model_sheet(found: TotalsByVariant) -> Sheet:
    """Returns one row per variant: means over the splits, and the deviation of one."""
    head = (
        "heads", "splits", "pairs trained", "pairs kept", "loss", "SD", "score's accuracy %", "SD",
        "length only %",
    )  # fmt: skip
    rows = tuple(
        (
            name,
            str(len(totals)),
            number(mean_of(totals, "pairs", "trained"), 0),
            number(mean_of(totals, "pairs", "validation"), 0),
            number(mean_of(totals, "loss"), 3),
            number(_sd(totals, "loss"), 3),
            percent(mean_of(totals, "score", "accuracy")),
            percent(_sd(totals, "score", "accuracy")),
            percent(mean_of(totals, "score", "length_only")),
        )
        for name, totals in found.items()
    )
    sheet = Sheet("Reward models (validation questions; means over splits)", head, rows)
    return sheet.with_column(PAPER, [PAPERS.get(name, "") for name in found])


def head_sheet(found: TotalsByVariant) -> Sheet:
    """Returns one row per head of every variant."""
    head = ("heads", "head", "pairs kept", "loss", "SD", "accuracy %", "SD", "length only %")
    rows = tuple(
        (
            name,
            one,
            number(mean_of(totals, "heads", one, "pairs"), 0),
            number(mean_of(totals, "heads", one, "loss"), 3),
            number(_sd(totals, "heads", one, "loss"), 3),
            percent(mean_of(totals, "heads", one, "accuracy")),
            percent(_sd(totals, "heads", one, "accuracy")),
            percent(mean_of(totals, "heads", one, "length_only")),
        )
        for name, totals in found.items()
        for one in totals[0]["heads"]
    )
    return Sheet("Heads (validation questions; means over splits)", head, rows, names=2)


def _sd(totals: Sequence[StageTotals], *path: str) -> float | None:
    """Returns the deviation over splits, or None if there is only one."""
    values = numbers_of(totals, *path)
    return stdev(values) if len(values) > 1 else None


def bars(found: TotalsByVariant) -> list[Bar]:
    """Returns a bar per score: its accuracy over the splits, and that of length alone in grey."""
    told = []
    for name, totals in found.items():
        for field in ("accuracy", "length_only"):
            strong = field == "accuracy"
            if values := numbers_of(totals, "score", field):
                title = name if strong else f"{name}: length only"
                told.append(Bar(title, min(values), fmean(values), max(values), strong))
    return told
