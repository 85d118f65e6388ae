"""`make verify`: checks parts and ledger for damage. Rebuilds damaged parts from the ledger.

    branchwise verify --run datasets/atlas

Checks hash and row count of every part in the manifest, and the checksum of every row of the
ledger. Rebuilds damaged or lost trees, pairs and questions from the ledger; this needs no model. A
rebuilt part must have its committed hash, or nothing is changed. Parts that another stage can
recompute without calls (evaluations, relabelled pairs) leave the manifest, and the stage to run is
printed. `--drop-damaged` removes damaged rows from the ledger, so that their calls can be made
and paid a second time. With `--dry-run` nothing is changed.
"""

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotation.annotator import AnnotatedQuestion
from base.errors import BudgetExceeded, StorageError
from engines.ledgered import LedgeredEngine
from engines.recorded import RecordedEngine
from engines.sampling import Capabilities
from engines.settings import ModelSettings
from retrieval.interface import Retriever
from runs.annotation.commit import Committer
from runs.annotation.tree_growing import annotator_for
from runs.factories import open_data, open_index
from runs.folder import Run, check_same_inputs, existing_run, noted_inputs
from runs.inputs import inputs_of
from runs.stage import DONE, FAILED, StageContext, StageResult
from sources.load import Data
from storage.ledger import Ledger
from storage.ledger_check import REMEDY, Checked, check
from storage.manifest import PartInfo, bad_parts, load_manifest, remove_parts
from storage.parts import Part, number_of
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
        "ledger": {"rows": ledger.rows, "damaged": len(ledger.damaged) + len(ledger.faults)},
    }
    if not bad or context.dry_run:
        return StageResult(totals, DONE if ledger.whole and not bad else FAILED)
    left = _rebuild(context, run, [part for part, _ in bad], ledger)
    return StageResult(
        {**totals, "not_rebuilt": left}, DONE if ledger.whole and not left else FAILED
    )


def _checked_ledger(context: StageContext, run: Run, *, drop_damaged: bool) -> Checked:
    if not run.ledger.exists():  # runs of imported pairs have only parquet
        return Checked(0, (), ())
    found = check(run.ledger)
    _report_damage(context, run, found)
    if found.whole or context.dry_run or not drop_damaged:
        return found
    with run.open_ledger() as ledger:
        ledger.drop(found.damaged)
    context.log(
        f"{run.ledger}: {len(found.damaged)} damaged rows removed; the next `branchwise annotate` "
        "or `branchwise eval` repeats and pays for the calls it needs"
    )
    again = check(run.ledger)
    _report_damage(context, run, again)
    return again


def _report_damage(context: StageContext, run: Run, found: Checked) -> None:
    intact = found.rows - len(found.damaged)
    context.log(f"{intact:,} of {found.rows:,} rows of the ledger are undamaged")
    if found.whole:
        return
    for fault in (*found.damaged[:REPORTED_ROWS], *found.faults):
        context.log(f"{run.ledger}: damaged: {fault}")
    if (more := len(found.damaged) - REPORTED_ROWS) > 0:
        context.log(f"{run.ledger}: damaged: {more:,} more rows")
    context.log(REMEDY)


def _rebuild(
    context: StageContext, run: Run, bad: Sequence[PartInfo], checked: Checked
) -> list[str]:
    others = [
        part for part in bad if part.table not in REBUILT_TABLES and part.table != "questions"
    ]
    with run.open_ledger() as ledger:
        if checked.whole:
            remove_parts(run.folder, others)
            for part in others:
                context.log(f"{part.path}: left the manifest; {_remedy(part)}")
        elif others:
            context.log("parts of other stages are left unchanged until the ledger is repaired")
        left = [part.path for part in others]
        if len(others) < len(bad):
            data = open_data(run.recipe)
            retriever = open_index(run.recipe, data.passages, context.log)
            check_same_inputs(run.folder, inputs_of(run.recipe, data, retriever))
            committer = Committer(run, ledger, data.questions, data.notes)
            rebuilding = Rebuilding(context, committer, data, retriever, checked.whole)
            left += rebuilding.rebuild(bad)
    return left


def _remedy(part: PartInfo) -> str:
    stages = {"eval": "eval", "relabelled": "relabel", "survival": "diagnose", "select": "select"}
    stage = stages.get(part.table.partition("/")[0], "annotate")
    return f"rerun `branchwise {stage}`, which replays the ledger"


@dataclass(frozen=True)
class Rebuilding:
    """Parts rebuilt from the ledger.

    Attributes:
        whole: whether all rows of the ledger are as they were stored. Only then is a call that
            is not found there one that it never had, and its question pending.
    """

    context: StageContext
    committer: Committer
    data: Data
    retriever: Retriever
    whole: bool

    def rebuild(self, bad: Sequence[PartInfo]) -> list[str]:
        """Replaces the files of these parts. Returns the paths of those that failed."""
        paths = {part.path for part in bad}
        left = []
        if any(part.table == "questions" for part in bad) and not self._write_if_matching(
            [self.committer.questions_part()], paths
        ):
            left.append("questions")
        for number in sorted({number_of(part) for part in bad if part.table in REBUILT_TABLES}):
            name = f"part-{number:05d}"
            parts = self._replay_part(name, number)
            if parts is None or not self._write_if_matching(parts, paths):
                left.append(name)
        return left

    def _replay_part(self, name: str, number: int) -> Sequence[Part] | None:
        run, ledger = self.committer.run, self.committer.ledger
        try:
            questions = _of_part(ledger, self.data, number)
            regrown = asyncio.run(_replay_part(run, ledger, self.retriever, questions))
        except BudgetExceeded as missing:
            if self.whole:
                self.committer.drop_part(number)
                then = "its questions are pending: rerun `branchwise annotate`"
            else:
                then = "the ledger is damaged, so nothing was changed"
            self.context.log(f"{name}: {missing}; {then}")
            return None
        except StorageError as fault:
            self.context.log(f"{name}: {fault}. Nothing was changed")
            return None
        return self.committer.grown_parts(number, regrown)

    def _write_if_matching(self, made: Sequence[Part], bad: Collection[str]) -> bool:
        """Writes the bad parts of `made` that match the committed hash; returns whether all
        match.
        """
        folder = self.committer.run.folder
        committed = {part.path: part.sha256 for part in load_manifest(folder).parts}
        other = [p.info for p in made if p.info.sha256 != committed.get(p.info.path)]
        for info in other:
            self.context.log(
                f"{info.path}: rebuilt, it has the sha256 {info.sha256}, but "
                f"{committed.get(info.path)} was committed, so it was left as it is. "
                "The ledger or the installed software has changed. Restore the file from a copy of "
                "the run, or install the versions in provenance.json"
            )
        for part in made:
            if part.info.path in bad and part.info not in other:
                part.write(folder)
                self.context.log(f"{part.info.path}: rebuilt from the ledger, as committed")
        return not other


def _of_part(ledger: Ledger, data: Data, number: int) -> list[Question]:
    ids = {row.question_id for row in ledger.questions() if row.part == f"{number:05d}"}
    return [question for question in data.questions if question.id in ids]


async def _replay_part(
    run: Run, ledger: Ledger, retriever: Retriever, questions: Sequence[Question]
) -> list[AnnotatedQuestion]:
    """Replays the annotation of the questions from the ledger.

    Raises:
        BudgetExceeded: If a call is not in the ledger.
        StorageError: If a question could not be replayed.
    """
    recipe, inputs = run.recipe, noted_inputs(run.folder)
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
        RecordedEngine(model.model, digest, Capabilities(**json.loads(kept))), ledger
    )
