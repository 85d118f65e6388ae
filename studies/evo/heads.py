"""`make study STUDY=evo-heads`: one head or seven? (EVO-RAG section 3.3: a loss of 0.71 or 0.62.)

The study trains reward models on the siblings of the shared trees, and validates them on a fifth of
the questions, a different fifth for every seed. There are three variants:

- `component`: seven heads; each learns the order of its own reward's returns.
- `total`: seven heads; all learn the order of the weighted total, as in the paper.
- `single`: one head on the total.

Next to every figure is the accuracy of a rule that knows only the steps' lengths.

The paper's seven heads learn one and the same problem. Ours share no weights and start at 0, so
they converge to the same weights, and `total` and `single` agree up to rounding. So the number of
heads cannot explain the paper's difference. The loss of `component` is a mean over seven other
orders, some of them easy, and cannot be compared with the other two. Compare how often a model's
score orders siblings as the total does.

A dozen validation questions give the accuracy to within several points; the deviation over the
splits shows how precisely.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from branchwise.base import Sheet, number, percent
from branchwise.runs import StageTotals, Study, StudyRunner, write_sheets

from ..arms import mean_of, numbers_of
from ..study_tables import PAPER, Bar, draw
from .shared import OTHERS, TIME_DYNAMIC, trees_of

NAME = "evo-heads"

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "component": {"heads": "multi", "labels": "component"},
    "total": {"heads": "multi", "labels": "total"},
    "single": {"heads": "single", "labels": "total"},
}
PAPERS = {"total": "loss 0.62", "single": "loss 0.71"}

AXIS = "sibling pairs in the same order by score and total, % (mean and range over splits)"

TotalsByVariant = Mapping[str, Sequence[StageTotals]]
"""Totals of every split, by variant."""


def evo_heads(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    runner.run_stage("annotate")
    by_variant: dict[str, list[StageTotals]] = {name: [] for name in VARIANTS}
    for seed in runner.seeds:
        for name, variant in VARIANTS.items():
            settings = {
                **TIME_DYNAMIC,
                "seed": seed,
                "training.reward_model.split_seed": seed,
                **{f"training.reward_model.{key}": value for key, value in variant.items()},
            }
            name_option = ("--name", f"heads-{name}-{seed}")
            by_variant[name].append(runner.run_stage("train-rm", *name_option, settings=settings))
        if not runner.context.dry_run:
            draw(bars(by_variant), runner.folder / f"{NAME}.svg", AXIS, no_effect=0.5)
            note = f"{trees_of(runner.recipe)} {OTHERS}"
            write_sheets(runner, NAME, [model_sheet(by_variant), head_sheet(by_variant)], note)


def model_sheet(by_variant: TotalsByVariant) -> Sheet:
    """Returns one row per variant: means over the splits and their standard deviation."""
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
        for name, totals in by_variant.items()
    )
    sheet = Sheet("Reward models (validation questions; means over splits)", head, rows)
    return sheet.with_column(PAPER, [PAPERS.get(name, "") for name in by_variant])


def head_sheet(by_variant: TotalsByVariant) -> Sheet:
    """Returns one row per head of every variant."""
    head = ("heads", "head", "pairs kept", "loss", "SD", "accuracy %", "SD", "length only %")
    rows = tuple(
        (
            name,
            head_name,
            number(mean_of(totals, "heads", head_name, "pairs"), 0),
            number(mean_of(totals, "heads", head_name, "loss"), 3),
            number(_sd(totals, "heads", head_name, "loss"), 3),
            percent(mean_of(totals, "heads", head_name, "accuracy")),
            percent(_sd(totals, "heads", head_name, "accuracy")),
            percent(mean_of(totals, "heads", head_name, "length_only")),
        )
        for name, totals in by_variant.items()
        for head_name in totals[0]["heads"]
    )
    return Sheet("Heads (validation questions; means over splits)", head, rows, names=2)


def _sd(totals: Sequence[StageTotals], *path: str) -> float | None:
    values = numbers_of(totals, *path)
    return stdev(values) if len(values) > 1 else None


def bars(by_variant: TotalsByVariant) -> list[Bar]:
    """Returns two bars per variant: the accuracy of its score, and in grey that of length alone."""
    variant_bars = []
    for name, totals in by_variant.items():
        for field in ("accuracy", "length_only"):
            strong = field == "accuracy"
            if values := numbers_of(totals, "score", field):
                title = name if strong else f"{name}: length only"
                variant_bars.append(Bar(title, min(values), fmean(values), max(values), strong))
    return variant_bars


STUDY = Study(evo_heads, recipe="evo-studies", trains=False, seeds=(0, 1, 2, 3, 4))
