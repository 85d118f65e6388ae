"""`make verify`: is every committed part as it was committed? What is not is made again.

    branchwise verify --run datasets/atlas

Hashes and counts the rows of every part that the manifest names. Trees, pairs and questions that
were damaged or lost are rebuilt from the ledger: no model is asked, none needs to be there. What
other stages make again without a call (evaluations, relabelled pairs) leaves the manifest, and
the stage to run is named. With `--dry-run` nothing is changed.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence

from annotation.annotator import Annotated
from engines.ledgered import LedgeredEngine
from engines.recorded import RecordedEngine
from engines.sampling import Capabilities
from engines.settings import ModelSettings
from pipelines.assemble import open_data, open_index
from pipelines.commit import Committer
from pipelines.growing import annotator_for
from pipelines.inputs import inputs_of
from pipelines.run import Run, existing_run, noted_inputs, refuse_other_inputs
from pipelines.stage import DONE, FAILED, Invocation, Outcome
from retrieval.interface import Retriever
from sources.load import Data
from storage.errors import BudgetExceeded, StorageError
from storage.ledger import Ledger
from storage.manifest import PartInfo, bad_parts, load_manifest, remove_parts
from storage.parts import number_of
from storage.records import Question

GROWN = frozenset({"trees", "pairs"})
"""Tables that come from the ledger, two parts of one number together."""


def verify(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    run = existing_run(call.run)
    parts = load_manifest(run.folder).parts
    bad = bad_parts(run.folder)
    for part, problem in bad:
        call.say(f"{run.folder / part.path}: {problem}")
    call.say(f"{len(parts) - len(bad)} of {len(parts)} parts are as they were committed")
    totals = {"parts": len(parts), "bad": [part.path for part, _ in bad]}
    if not bad or call.dry_run:
        return Outcome(totals, FAILED if bad else DONE)
    left = _rebuild(call, run, [part for part, _ in bad])
    return Outcome({**totals, "not_rebuilt": left}, FAILED if left else DONE)


def _rebuild(call: Invocation, run: Run, bad: Sequence[PartInfo]) -> list[str]:
    """Make the parts again; returns those that could not be."""
    annotated = [part for part in bad if part.table in GROWN]
    others = [part for part in bad if part.table not in GROWN and part.table != "questions"]
    left = [part.path for part in others]
    with run.open_ledger() as ledger:
        remove_parts(run.folder, others)
        for part in others:
            call.say(f"{part.path}: left the manifest; {_remedy(part)}")
        if len(others) < len(bad):
            left += _from_ledger(call, run, ledger, annotated)
    return left


def _remedy(part: PartInfo) -> str:
    stages = {"eval": "eval", "relabelled": "relabel", "survival": "diagnose"}
    stage = stages.get(part.table.partition("/")[0], "annotate")
    return f"run `branchwise {stage}` again, which replays the ledger"


def _from_ledger(call: Invocation, run: Run, ledger: Ledger, bad: Iterable[PartInfo]) -> list[str]:
    data = open_data(run.recipe)
    retriever = open_index(run.recipe, data.passages)
    refuse_other_inputs(run.folder, inputs_of(run.recipe, data, retriever))
    committer = Committer(run, ledger, data.questions, data.notes)
    committer.write_questions()
    left = []
    for number in sorted({number_of(part) for part in bad}):
        name = f"part-{number:05d}"
        try:
            regrown = asyncio.run(_regrown(run, ledger, retriever, _of_part(ledger, data, number)))
        except BudgetExceeded as missing:
            committer.forget(number)
            left.append(name)
            call.say(f"{name}: {missing}; its questions are owed: run `branchwise annotate` again")
            continue
        committer.commit(number, regrown)
        call.say(f"{name}: made again from the ledger, {len(regrown)} questions")
    committer.finish()
    return left


def _of_part(ledger: Ledger, data: Data, number: int) -> list[Question]:
    """The questions that a part was committed with."""
    ids = {row.question_id for row in ledger.questions() if row.part == f"{number:05d}"}
    return [question for question in data.questions if question.id in ids]


async def _regrown(
    run: Run, ledger: Ledger, retriever: Retriever, questions: Sequence[Question]
) -> list[Annotated]:
    """The questions as they were annotated.

    Raises:
        BudgetExceeded: a call is not in the ledger.
        StorageError: a question could not be annotated again.
    """
    recipe, inputs = run.recipe, noted_inputs(run.folder)
    policy = recorded(recipe.policy, inputs["policy"], ledger)
    judge, verifier = (
        recorded(model, inputs[role], ledger) if model else None
        for role, model in (("judge", recipe.asked_judge), ("verifier", recipe.asked_verifier))
    )
    annotator = annotator_for(recipe, policy, judge, verifier, retriever)
    regrown = [await annotator.annotate(question) for question in questions]
    for failure in (annotated.failure for annotated in regrown):
        if failure is not None:  # the search server, say
            raise StorageError(f"question {failure.question_id}: {failure.detail}")
    return regrown


def recorded(model: ModelSettings, digest: str, ledger: Ledger) -> LedgeredEngine:
    """What the ledger kept of a model.

    Raises:
        StorageError: the ledger does not know the engine.
    """
    kept = ledger.engine(digest)
    if kept is None:
        raise StorageError(
            f"{ledger.path}: knows no engine {digest} ({model.model}): it is not the ledger that "
            "this run was made with; put that back, or run `branchwise annotate` again"
        )
    return LedgeredEngine(
        RecordedEngine(model.model, digest, Capabilities(**json.loads(kept))), ledger
    )
