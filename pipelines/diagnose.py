"""`make diagnose`: predicts whether training on a run is likely to help.

    branchwise diagnose --run datasets/atlas --sample 40
    branchwise diagnose --run datasets/atlas --no-model

Examines pairs and trees, draws fresh rollouts for both sides of a sample of pairs, and checks that
the labels rank them the same way (if answers alone decide the rewards). After `train-dpo` it also
reads the curve of `models/<run>/dpo`. Prints one line per figure, with its interpretation, and
writes `diagnosis.json` and `diagnosis.md`, for a relabelling into its folder. The rollouts are in
the ledger and in `survival/`, so none is paid for twice.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from analysis.diagnosis import PairFigures, TreeFigures, pair_figures, tree_figures
from analysis.survival import (
    FACETS,
    Fresh,
    SurvivalRow,
    Worth,
    sample_pairs,
    survival_table,
)
from analysis.table import NONE, Sheet, number
from base.atomic import atomic_write_json, atomic_write_text
from base.errors import ConfigError, StorageError
from base.terminal_escape import inert
from runs.annotation.diagnosis_rules import (
    SURVIVAL_NOT_APPLICABLE,
    Finding,
    conclusion,
    of_export,
    of_survival,
    of_training,
    pair_findings,
    tree_findings,
)
from runs.annotation.fresh_rollouts import FreshRolloutResult, roll_fresh
from runs.annotation.labelling import labelling_of
from runs.annotation.stored_trees import check_relabelling, labels_table, pairs_table, stored_trees
from runs.factories import model_folder
from runs.folder import existing_run
from runs.stage import Label, StageContext, StageResult, failure_code
from storage.manifest import load_manifest
from storage.parts import read_parts
from storage.records import Pair
from storage.schemas import table_to_records
from training.curves import PolicyShift, movement_of


@dataclass
class Diagnosis:
    """All findings; `totals` is the content of `--json` and `diagnosis.json`."""

    run: str
    label: str | None
    pairs: PairFigures | None
    trees: TreeFigures | None
    survival: dict[str, list[SurvivalRow]] = field(default_factory=dict)
    training: PolicyShift | None = None
    export: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)

    def totals(self) -> dict[str, Any]:
        return {**asdict(self), "conclusion": conclusion(self.findings)}


def diagnose(
    context: StageContext,
    label: Label = None,
    sample: Annotated[int, "pairs rolled out"] = 40,
    rollouts: Annotated[int, "rollouts per side of a pair"] = 8,
    no_model: Annotated[bool, "use no model, parquet only"] = False,
    model: Annotated[str | None, "trained; default models/<run>/dpo"] = None,
    export: Annotated[bool, "also compare it with its export"] = False,
) -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    table = pairs_table(label)
    check_relabelling(run, label)
    pairs = table_to_records(read_parts(run.folder, table), Pair)
    scheme = labelling_of(run, label).scheme
    labels = labels_table(label)
    grown = load_manifest(run.folder).rows(labels)
    returns = not scheme.by_answer
    unsampled = no_model or not grown or returns
    sampled = [] if unsampled else sample_pairs(pairs, sample, context.recipe.seed)
    context.log(
        f"diagnose: table {table}, {len(pairs)} pairs; {len(sampled)} of them get fresh rollouts"
    )
    if context.dry_run:
        return StageResult({"pairs": len(pairs), "sample": len(sampled), "dry_run": True})
    rolled = roll_fresh(context, run, sampled, rollouts) if sampled else None
    if rolled is not None and rolled.pending:
        context.log(f"stopped: {rolled.reason}; rerun the same command to resume")
        return StageResult({"pending": rolled.pending}, rolled.exit_code)
    trees = tree_figures(tree.nodes for tree in stored_trees(run, labels))
    found = Diagnosis(run.folder.name, label, pair_figures(pairs), trees)
    found.findings += pair_findings(found.pairs)
    questions = found.pairs.questions if found.pairs else 0
    found.findings += tree_findings(found.trees, questions, returns=returns)
    if returns:
        found.findings.append(SURVIVAL_NOT_APPLICABLE)
    if rolled is not None:
        _add_label_survival(found, sampled, rolled.fresh, scheme.rollout_value)
    found.findings += _training(context, found, model, export=export)
    _report(context, found, run.folder / Path(table).parent)
    return StageResult(found.totals(), _exit_code(context, sampled, rolled))


def _add_label_survival(
    found: Diagnosis, sample: Sequence[Pair], fresh: Fresh, worth: Worth
) -> None:
    for name in (None, *FACETS):
        found.survival[name or "all"] = survival_table(sample, fresh, worth, name)
    found.findings.append(of_survival(next(iter(found.survival["all"]), None), len(sample)))


def _training(
    context: StageContext, found: Diagnosis, named: str | None, *, export: bool
) -> Iterator[Finding]:
    model = Path(named or model_folder(context.run, "dpo"))
    found.training = movement_of(model)
    if found.training is None:
        if named or export:
            raise ConfigError(f"{model}: no metrics.jsonl; train it first, or name another --model")
        yield Finding("training", "not yet", "–", f"`branchwise train-dpo --run {context.run}`")
        return
    yield from of_training(found.training)
    if export:
        yield _exported(context, found, model)
    else:
        advice = "--export writes its files and compares their logits with the adapter's"
        yield Finding("export", "not looked at", "–", advice)


def _exported(context: StageContext, found: Diagnosis, model: Path) -> Finding:
    from training.export import export_policy

    try:
        report = export_policy(str(model), precision=context.recipe.policy.precision)
    except StorageError as error:
        return Finding("export", "the trained change is lost", "bad", str(error))
    found.export = report.totals()
    return of_export({one.form: one.correlation for one in report.exported})


def _report(context: StageContext, found: Diagnosis, folder: Path) -> None:
    context.console.print(_sheet(found).text())
    context.log(conclusion(found.findings))
    atomic_write_json(folder / "diagnosis.json", found.totals())
    atomic_write_text(folder / "diagnosis.md", markdown(found))
    context.log(f"kept in {folder / 'diagnosis.md'}")


def markdown(found: Diagnosis) -> str:
    """Returns the findings, and label survival by every facet, as Markdown tables."""
    title = found.run if found.label is None else f"{found.run}, labels `{found.label}`"
    lines = [f"# Can {inert(title)} teach?", "", f"Conclusion: {conclusion(found.findings)}.", ""]
    lines.append(_sheet(found).markdown())
    if found.survival:
        rows = tuple(
            _survival_cells(by, row) for by, rows in found.survival.items() for row in rows
        )
        lines.append(Sheet("Label survival", _SURVIVAL, rows, names=2).markdown())
    return "\n".join(lines)


def _sheet(found: Diagnosis) -> Sheet:
    head = ("measure", "value", "verdict", "usual value, or advice")
    rows = tuple((one.what, one.figure, one.verdict, one.advice) for one in found.findings)
    return Sheet(f"can {found.run} teach?", head, rows, names=4)


_SURVIVAL = (
    "by", "group", "pairs", "questions", "kept", "95 %", "luck", "reversed", "tied", "of decided",
    "label gap", "fresh gap", "its 95 %",
)  # fmt: skip


def _survival_cells(by: str, row: SurvivalRow) -> tuple[str, ...]:
    (low, high), (gap_low, gap_high) = row.kept_interval, row.fresh_gap_interval
    return (
        by,
        row.group,
        str(row.pairs),
        str(row.questions),
        f"{row.kept:.0%}",
        f"{low:.0%}–{high:.0%}",
        f"{row.luck:.0%}",
        f"{row.reversed:.0%}",
        f"{row.tied:.0%}",
        NONE if row.decided is None else f"{row.decided:.0%}",
        number(row.label_gap, 3),
        number(row.fresh_gap, 3),
        f"{gap_low:.3f} to {gap_high:.3f}",
    )


def _exit_code(
    context: StageContext, sample: Sequence[Pair], rolled: FreshRolloutResult | None
) -> int:
    failed = Counter[str]() if rolled is None else rolled.failed
    trees = len({pair.tree_id for pair in sample})
    return failure_code(context, failed, trees, "trees could not be rolled out")
