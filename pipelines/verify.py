"""`make verify`: checks parts and ledger for damage. Rebuilds damaged parts from the ledger.

    branchwise verify --run datasets/atlas

Checks hash and row count of every part in the manifest, and the checksum of every row of the
ledger. Rebuilds damaged or lost trees, pairs and questions from the ledger; this needs no model. A
rebuilt part must have its committed hash, or nothing is changed. Parts that another stage can
recompute without calls (evaluations, relabelled pairs) leave the manifest, and the stage to run is
printed. Damaged question states are rebuilt from the calls. `--drop-damaged` removes damaged calls
from the ledger, so that they can be made and paid a second time. With `--dry-run` nothing is
changed.
"""

from collections.abc import Sequence
from typing import Annotated

from runs.annotation.commit import Committer, restate_questions
from runs.annotation.rebuilding import REBUILT_TABLES, rebuild_parts
from runs.annotation.stored_trees import relabelling_of
from runs.factories import open_data, open_index
from runs.folder import Run, check_same_inputs, existing_run, noted_inputs
from runs.inputs import inputs_of
from runs.stage import DONE, FAILED, StageContext, StageResult
from storage.ledger_check import REMEDY, Checked, check
from storage.manifest import PartInfo, bad_parts, load_manifest, remove_parts
from storage.parts import TRAINED

REPORTED_ROWS = 20
"""Damaged rows of a ledger that are named; of more there is only the number."""


def verify(
    context: StageContext,
    drop_damaged: Annotated[bool, "remove damaged ledger rows; their calls are paid again"] = False,
) -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    parts = load_manifest(run.folder).parts
    bad = bad_parts(run.folder)
    for part, problem in bad:
        context.log(f"{run.folder / part.path}: {problem}")
    context.log(f"{len(parts) - len(bad)} of {len(parts)} parts are as they were committed")
    ledger = _checked_ledger(context, run, drop_damaged=drop_damaged)
    totals = {
        "parts": len(parts),
        "bad": [part.path for part, _ in bad],
        "ledger": {
            "rows": ledger.rows,
            "damaged": len(ledger.damaged) + len(ledger.faults),
            "lost": ledger.lost is not None,
        },
    }
    if not bad or context.dry_run or ledger.lost:
        return StageResult(totals, DONE if ledger.whole and not bad else FAILED)
    left = _rebuild(context, run, [part for part, _ in bad], ledger)
    return StageResult(
        {**totals, "not_rebuilt": left}, DONE if ledger.whole and not left else FAILED
    )


def _checked_ledger(context: StageContext, run: Run, *, drop_damaged: bool) -> Checked:
    """Checks the ledger; repairs its question states, and removes damaged rows if asked."""
    found = check(run.ledger)
    _report_damage(context, run, found)
    calls = [row for row in found.damaged if row.table != "questions"]
    repairs_states = len(calls) < len(found.damaged)
    drops = drop_damaged and bool(calls or found.faults)
    if context.dry_run or found.lost or not (repairs_states or drops):
        return found
    with run.open_ledger() as ledger:
        if drops:
            ledger.drop(calls)
            context.log(
                f"{run.ledger}: {len(calls)} damaged rows removed; the next `branchwise annotate` "
                "or `branchwise eval` repeats and pays for the calls it needs"
            )
        if states := restate_questions(run, ledger):
            context.log(f"{run.ledger}: question states rebuilt: {states}; no call is repeated")
    again = check(run.ledger)
    _report_damage(context, run, again)
    return again


def _report_damage(context: StageContext, run: Run, found: Checked) -> None:
    intact = found.rows - len(found.damaged)
    context.log(f"{intact:,} of {found.rows:,} rows of the ledger are undamaged")
    for fault in (*found.damaged[:REPORTED_ROWS], *found.faults):
        context.log(f"{run.ledger}: damaged: {fault}")
    if (more := len(found.damaged) - REPORTED_ROWS) > 0:
        context.log(f"{run.ledger}: damaged: {more:,} more rows")
    if found.faults or any(row.table != "questions" for row in found.damaged):
        context.log(REMEDY)
    if found.lost:
        context.log(found.lost)


def _rebuild(
    context: StageContext, run: Run, bad: Sequence[PartInfo], checked: Checked
) -> list[str]:
    ours = [part for part in bad if part.table in REBUILT_TABLES]
    others = _with_their_relabellings(run, [part for part in bad if part not in ours])
    left = [part.path for part in others]
    with run.open_ledger() as ledger:
        if checked.whole:
            remove_parts(run.folder, others)
            for part in others:
                context.log(f"{part.path}: left the manifest; {_remedy(part)}")
        elif others:
            context.log("parts of other stages are left unchanged until the ledger is repaired")
        if ours and "imported_pairs" in noted_inputs(run.folder):
            for part in ours:
                context.log(f"{part.path}: imported; rerun `branchwise import-pairs`")
            left += [part.path for part in ours]
        elif ours:
            data = open_data(run.recipe)
            retriever = open_index(run.recipe, data.passages, context.log)
            check_same_inputs(run.folder, inputs_of(run.recipe, data, retriever))
            committer = Committer(run, ledger, data.questions, data.notes)
            left += rebuild_parts(context, committer, retriever, ours, whole=checked.whole)
    return left


def _with_their_relabellings(run: Run, bad: Sequence[PartInfo]) -> list[PartInfo]:
    """Adds all parts of a damaged relabelling, so that no training reads a rest of its pairs."""
    damaged = {relabelling_of(part.table) for part in bad} - {None}
    parts = load_manifest(run.folder).parts
    return [part for part in parts if part in bad or relabelling_of(part.table) in damaged]


def _remedy(part: PartInfo) -> str:
    if folder := relabelling_of(part.table):
        return (
            f"rerun `branchwise relabel --label {folder.partition('/')[2]}` with the settings in "
            f"{folder}/labelling.yaml"
        )
    stages = {
        "eval": "eval",
        "survival": "diagnose",
        "select": "select",
        TRAINED: "train-grpo",
    }
    stage = stages.get(part.table.partition("/")[0], "annotate")
    return f"rerun `branchwise {stage}`, which replays the ledger"
