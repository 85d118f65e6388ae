"""`make verify`: checks parts and ledger for damage, and removes what is damaged.

    branchwise verify --run datasets/atlas

Checks hash and row count of every part in the manifest, and the checksum of every row of the
ledger. Damaged or lost parts leave the manifest, and the stage to run is printed: it recomputes
their rows, from stored calls wherever the run has them. `--drop-damaged` removes damaged calls from
the ledger, so that they can be made and paid a second time. With `--dry-run` nothing is changed.
"""

from collections.abc import Sequence
from typing import Annotated

from branchwise.runs import (
    DONE,
    FAILED,
    Run,
    StageContext,
    StageResult,
    existing_run,
    relabelling_of,
)
from branchwise.storage import (
    GROWN,
    REMEDY,
    TRAINED,
    Checked,
    PartInfo,
    bad_parts,
    check,
    load_manifest,
    part_number,
    remove_parts,
)
from branchwise.storage import drop_damaged as drop_damaged_rows

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
    if bad and not context.dry_run:
        _remove(context, run, [part for part, _ in bad], ledger)
    return StageResult(totals, DONE if ledger.whole and not bad else FAILED)


def _checked_ledger(context: StageContext, run: Run, *, drop_damaged: bool) -> Checked:
    """Checks the ledger; removes damaged rows if asked."""
    checked = _check(context, run)
    damaged = checked.damaged or checked.faults
    if not (drop_damaged and damaged) or context.dry_run or checked.lost:
        return checked
    drop_damaged_rows(run.ledger, checked.damaged)
    context.log(
        f"{run.ledger}: {len(checked.damaged)} damaged rows removed; the next `branchwise "
        "annotate` or `branchwise eval` repeats and pays for the calls it needs"
    )
    return _check(context, run)


def _check(context: StageContext, run: Run) -> Checked:
    """Checks the ledger and logs its damage."""
    checked = check(run.ledger)
    intact = checked.rows - len(checked.damaged)
    context.log(f"{intact:,} of {checked.rows:,} rows of the ledger are undamaged")
    for fault in (*checked.damaged[:REPORTED_ROWS], *checked.faults):
        context.log(f"{run.ledger}: damaged: {fault}")
    if (more := len(checked.damaged) - REPORTED_ROWS) > 0:
        context.log(f"{run.ledger}: damaged: {more:,} more rows")
    if checked.faults or checked.damaged:
        context.log(REMEDY)
    if checked.lost:
        context.log(checked.lost)
    return checked


def _remove(context: StageContext, run: Run, bad: Sequence[PartInfo], ledger: Checked) -> None:
    """Removes damaged parts from the manifest, with the parts that belong to them."""
    if not ledger.whole:
        context.log("damaged parts stay in the manifest until the ledger is repaired")
        return
    imported = "imported_pairs" in run.record.inputs
    with run.held():
        removed = _with_their_companions(run, bad)
        remove_parts(run.folder, removed)
    for part in removed:
        context.log(f"{part.path}: left the manifest; {_remedy(part, imported)}")


def _with_their_companions(run: Run, bad: Sequence[PartInfo]) -> list[PartInfo]:
    """Adds the pairs of damaged trees and the reverse, and all parts of a damaged relabelling.

    Otherwise a training would read the rest of the pairs as if it were all of them.
    """
    numbers = {part_number(part) for part in bad if part.table in GROWN}
    labels = {relabelling_of(part.table) for part in bad} - {None}
    return [
        part
        for part in load_manifest(run.folder).parts
        if part in bad
        or (part.table in GROWN and part_number(part) in numbers)
        or relabelling_of(part.table) in labels
    ]


def _remedy(part: PartInfo, imported: bool) -> str:
    if imported and part.table in GROWN:
        return "rerun `branchwise import-pairs`"
    if folder := relabelling_of(part.table):
        return (
            f"rerun `branchwise relabel --label {folder.partition('/')[2]}` with the settings in "
            f"{folder}/labelling.yaml"
        )
    stages = {"eval": "eval", "survival": "diagnose", "select": "select", TRAINED: "train-grpo"}
    stage = stages.get(part.table.partition("/")[0], "annotate")
    replay = " (with --replay if its models are gone)" if stage == "annotate" else ""
    return f"rerun `branchwise {stage}`{replay}, which replays the ledger"
