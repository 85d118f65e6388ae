"""`make diagnose`: predicts whether training on a run is likely to help.

    branchwise diagnose --run datasets/atlas --sample 40
    branchwise diagnose --run datasets/atlas --no-model

Examines pairs and trees, draws fresh rollouts for both sides of a sample of pairs, and checks that
the labels rank them the same way (if answers alone decide the rewards). After `train-dpo` it also
reads the curve of `models/<run>/dpo`. Prints one line per figure, with its interpretation, and
writes `diagnosis.json` and `diagnosis.md`, for a relabelling into its folder. The rollouts are in
the ledger and in `survival/`, so none is paid for twice.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from branchwise.analysis import (
    FACETS,
    PairFigures,
    SurvivalRow,
    TreeFigures,
    pair_figures,
    sample_pairs,
    survival_table,
    tree_figures,
)
from branchwise.base import (
    NONE,
    ConfigError,
    Sheet,
    StorageError,
    atomic_write_json,
    atomic_write_text,
    number,
    terminal_safe,
)
from branchwise.runs import (
    FreshRolloutResult,
    Label,
    StageContext,
    StageResult,
    check_relabelling,
    existing_run,
    failure_code,
    labelling_of,
    labels_table,
    model_folder,
    pairs_table,
    roll_fresh,
    stored_trees,
)
from branchwise.storage import load_manifest, read_parts, table_to_records
from branchwise.training import PolicyShift, movement_of
from branchwise.types import Pair

from .diagnosis_rules import (
    Finding,
    conclusion,
    export_finding,
    pair_findings,
    survival_finding,
    training_findings,
    tree_findings,
)


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
    is_sampled = grown and not no_model and not returns
    sampled = sample_pairs(pairs, sample, context.recipe.seed) if is_sampled else []
    context.log(
        f"diagnose: table {table}, {len(pairs)} pairs; {len(sampled)} of them get fresh rollouts"
    )
    if context.dry_run:
        return StageResult({"pairs": len(pairs), "sample": len(sampled), "dry_run": True})
    rolled = roll_fresh(context, run, sampled, rollouts) if sampled else FreshRolloutResult({})
    if rolled.pending:
        context.log(f"stopped: {rolled.reason}; rerun the same command to resume")
        return StageResult({"pending": rolled.pending}, rolled.exit_code)
    trees = tree_figures(tree.nodes for tree in stored_trees(run, labels))
    diagnosis = Diagnosis(run.folder.name, label, pair_figures(pairs), trees)
    diagnosis.findings += pair_findings(diagnosis.pairs)
    questions = diagnosis.pairs.questions if diagnosis.pairs else 0
    diagnosis.findings += tree_findings(trees, questions, returns=returns)
    if returns:
        advice = (
            "labels are returns of steps, but fresh rollouts only check which answers are right"
        )
        diagnosis.findings.append(Finding("label survival", "not checked", "–", advice))
    if sampled:
        diagnosis.survival = {
            name or "all": survival_table(sampled, rolled.fresh, scheme.rollout_value, name)
            for name in (None, *FACETS)
        }
        overall = next(iter(diagnosis.survival["all"]), None)
        diagnosis.findings.append(survival_finding(overall, len(sampled)))
    diagnosis.findings += _training(context, diagnosis, model, export=export)
    folder = run.folder / Path(table).parent
    context.console.print(_sheet(diagnosis).text())
    context.log(conclusion(diagnosis.findings))
    atomic_write_json(folder / "diagnosis.json", diagnosis.totals())
    atomic_write_text(folder / "diagnosis.md", markdown(diagnosis))
    context.log(f"kept in {folder / 'diagnosis.md'}")
    rolled_trees = len({pair.tree_id for pair in sampled})
    code = failure_code(context, rolled.failed, rolled_trees, "trees could not be rolled out")
    return StageResult(diagnosis.totals(), code)


def _training(
    context: StageContext, diagnosis: Diagnosis, model_name: str | None, *, export: bool
) -> Iterator[Finding]:
    model = Path(model_name or model_folder(context.run, "dpo"))
    diagnosis.training = movement_of(model)
    if diagnosis.training is None:
        if model_name or export:
            raise ConfigError(f"{model}: no metrics.jsonl; train it first, or name another --model")
        yield Finding("training", "not yet", "–", f"`branchwise train-dpo --run {context.run}`")
        return
    yield from training_findings(diagnosis.training)
    if export:
        yield _exported(context, diagnosis, model)
    else:
        advice = "--export writes its files and compares their logits with the adapter's"
        yield Finding("export", "not checked", "–", advice)


def _exported(context: StageContext, diagnosis: Diagnosis, model: Path) -> Finding:
    from branchwise.training import export_policy

    try:
        report = export_policy(str(model), precision=context.recipe.policy.precision)
    except StorageError as error:
        return Finding("export", "the trained change is lost", "bad", str(error))
    diagnosis.export = report.totals()
    return export_finding({file.form: file.correlation for file in report.exported})


def markdown(diagnosis: Diagnosis) -> str:
    """Returns the findings, and label survival by every facet, as Markdown tables."""
    label = "" if diagnosis.label is None else f", labels `{diagnosis.label}`"
    lines = [f"# Diagnosis of {terminal_safe(diagnosis.run + label)}", ""]
    lines += [f"Conclusion: {conclusion(diagnosis.findings)}.", "", _sheet(diagnosis).markdown()]
    if diagnosis.survival:
        rows = tuple(
            _survival_cells(facet, row)
            for facet, rows in diagnosis.survival.items()
            for row in rows
        )
        lines.append(Sheet("Label survival", _SURVIVAL, rows, names=2).markdown())
    return "\n".join(lines)


def _sheet(diagnosis: Diagnosis) -> Sheet:
    head = ("measure", "value", "verdict", "usual value, or advice")
    rows = tuple((f.what, f.figure, f.verdict, f.advice) for f in diagnosis.findings)
    return Sheet(f"diagnosis of {diagnosis.run}", head, rows, names=4)


_SURVIVAL = (
    "by", "group", "pairs", "questions", "kept", "95 %", "luck", "reversed", "tied", "of decided",
    "label gap", "fresh gap", "its 95 %",
)  # fmt: skip


def _survival_cells(facet: str, row: SurvivalRow) -> tuple[str, ...]:
    (low, high), (gap_low, gap_high) = row.kept_interval, row.fresh_gap_interval
    return (
        facet,
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
