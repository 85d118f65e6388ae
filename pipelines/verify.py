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

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

from annotation.annotator import AnnotatedQuestion
from base.errors import BudgetExceeded, StorageError
from engines.ledgered import LedgeredEngine
from engines.no_call import NoCallEngine
from engines.sampling import Capabilities
from engines.settings import ModelSettings
from retrieval.interface import Retriever
from runs.annotation.commit import Committer, restate_questions
from runs.annotation.tree_growing import annotator_for
from runs.factories import open_data, open_index
from runs.folder import Run, check_same_inputs, existing_run, noted_inputs
from runs.inputs import inputs_of
from runs.stage import DONE, FAILED, StageContext, StageResult
from storage.ledger import Ledger
from storage.ledger_check import REMEDY, Checked, check
from storage.manifest import PartInfo, bad_parts, load_manifest, remove_parts
from storage.parts import TRAINED, Part, part_number
from storage.records import Question

REBUILT_TABLES = frozenset({"trees", "pairs"})
"""Tables that come from the ledger, two parts of one number together."""
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
    ours = [part for part in bad if part.table in REBUILT_TABLES or part.table == "questions"]
    others = [part for part in bad if part not in ours]
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
            paths = {part.path for part in bad}
            for name, made in _made_again(context, committer, retriever, ours, checked.whole):
                if made is None or not _write_if_matching(context, run, made, paths):
                    left.append(name)
    return left


def _remedy(part: PartInfo) -> str:
    stages = {
        "eval": "eval",
        "relabelled": "relabel",
        "survival": "diagnose",
        "select": "select",
        TRAINED: "train-grpo",
    }
    stage = stages.get(part.table.partition("/")[0], "annotate")
    return f"rerun `branchwise {stage}`, which replays the ledger"


def _made_again(
    context: StageContext,
    committer: Committer,
    retriever: Retriever,
    bad: Sequence[PartInfo],
    whole: bool,
) -> Iterator[tuple[str, Sequence[Part] | None]]:
    """Yields parts by name as the ledger gives them; None if it does not.

    Args:
        whole: Whether all rows of the ledger are as they were stored. Only then is a call that is
            not found there one that it never had, and its question pending.
    """
    if any(part.table == "questions" for part in bad):
        yield "questions", [committer.questions_part()]
    sizes: dict[int, int] = defaultdict(int)
    for part in bad:
        if part.table in REBUILT_TABLES:
            sizes[part_number(part)] = max(sizes[part_number(part)], part.questions)
    for number, size in sorted(sizes.items()):
        name = f"part-{number:05d}"
        try:
            questions = _of_part(committer, number)
            if len(questions) < size:
                committer.drop_part(number)
                context.log(
                    f"{name}: the ledger no longer tells all of its questions, so they are "
                    "pending: rerun `branchwise annotate`, which replays their calls"
                )
                yield name, None
                continue
            regrown = asyncio.run(_replay_part(committer, retriever, questions))
        except BudgetExceeded as missing:
            if whole:
                committer.drop_part(number)
                then = "its questions are pending: rerun `branchwise annotate`"
            else:
                then = "the ledger is damaged, so nothing was changed"
            context.log(f"{name}: {missing}; {then}")
            yield name, None
        except StorageError as fault:
            context.log(f"{name}: {fault}. Nothing was changed")
            yield name, None
        else:
            yield name, committer.grown_parts(number, regrown)


def _write_if_matching(
    context: StageContext, run: Run, made: Sequence[Part], bad: Collection[str]
) -> bool:
    """Writes the bad parts of `made` that match the committed hash; returns whether all match."""
    committed = {part.path: part.sha256 for part in load_manifest(run.folder).parts}
    other = [part.info for part in made if part.info.sha256 != committed.get(part.info.path)]
    for info in other:
        context.log(
            f"{info.path}: rebuilt, it has the sha256 {info.sha256}, but "
            f"{committed.get(info.path)} was committed, so it was left as it is. The ledger or the "
            "installed software has changed. Restore the file from a copy of the run, or install "
            "the versions in provenance.json"
        )
    for part in made:
        if part.info.path in bad and part.info not in other:
            part.write(run.folder)
            context.log(f"{part.info.path}: rebuilt from the ledger, as committed")
    return not other


def _of_part(committer: Committer, number: int) -> list[Question]:
    rows = committer.ledger.questions()
    ids = {row.question_id for row in rows if row.part == f"{number:05d}"}
    return [question for question in committer.questions if question.id in ids]


async def _replay_part(
    committer: Committer, retriever: Retriever, questions: Sequence[Question]
) -> list[AnnotatedQuestion]:
    """Replays the annotation of the questions from the ledger.

    Raises:
        BudgetExceeded: If a call is not in the ledger.
        StorageError: If a question could not be replayed.
    """
    recipe, ledger = committer.run.recipe, committer.ledger
    inputs = noted_inputs(committer.run.folder)
    policy = recorded(recipe.policy, inputs.get("policy", ""), ledger)
    judge, verifier = (
        recorded(model, inputs.get(role, ""), ledger) if model else None
        for role, model in (("judge", recipe.active_judge), ("verifier", recipe.asked_verifier))
    )
    annotator = annotator_for(recipe, policy, judge, verifier, retriever)
    regrown = [await annotator.annotate(question) for question in questions]
    for failure in (annotated.failure for annotated in regrown):
        if failure is not None:  # e.g. the search server failed
            raise StorageError(f"question {failure.question_id}: {failure.detail}")
    return regrown


def recorded(model: ModelSettings, digest: str, ledger: Ledger) -> LedgeredEngine:
    """Returns an engine that replays a model's stored calls.

    Raises:
        StorageError: If the ledger does not know the engine.
    """
    kept = ledger.engine_capabilities(digest)
    if kept is None:
        raise StorageError(
            f"{ledger.path}: engine {digest} ({model.model}) is missing, so this ledger is from "
            "another run. Restore the right one, or rerun `branchwise annotate`"
        )
    return LedgeredEngine(
        NoCallEngine(model.model, digest, Capabilities(**json.loads(kept))), ledger
    )
