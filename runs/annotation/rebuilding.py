"""Rebuilds damaged parts of a run from the calls in its ledger."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from annotation.annotator import AnnotatedQuestion
from base.errors import BudgetExceeded, StorageError
from engines.ledgered import LedgeredEngine
from engines.no_call import NoCallEngine
from engines.sampling import Capabilities
from engines.settings import ModelSettings
from retrieval.interface import Retriever
from runs.annotation.commit import Committer
from runs.annotation.tree_growing import annotator_for
from runs.folder import Run, noted_inputs
from runs.stage import StageContext
from storage.ledger import Ledger
from storage.manifest import PartInfo, load_manifest
from storage.parts import Part, part_number
from storage.records import Question

REBUILT_TABLES = frozenset({"questions", "trees", "pairs"})
"""Tables that come from the ledger; parts of trees and pairs with one number together."""


def rebuild_parts(
    context: StageContext,
    committer: Committer,
    retriever: Retriever,
    bad: Sequence[PartInfo],
    *,
    whole: bool,
) -> list[str]:
    """Rebuilds parts of trees, pairs and questions; returns the names of those that failed.

    Args:
        whole: Whether all rows of the ledger are as they were stored. Only then is a call that is
            not found there one that it never had, and its question pending.
    """
    paths = {part.path for part in bad}
    return [
        name
        for name, made in _rebuilt_parts(context, committer, retriever, bad, whole)
        if made is None or not _write_if_matching(context, committer.run, made, paths)
    ]


def _rebuilt_parts(
    context: StageContext,
    committer: Committer,
    retriever: Retriever,
    bad: Sequence[PartInfo],
    whole: bool,
) -> Iterator[tuple[str, Sequence[Part] | None]]:
    """Yields parts by name as the ledger gives them; None if it does not."""
    if any(part.table == "questions" for part in bad):
        yield "questions", [committer.questions_part()]
    sizes: dict[int, int] = defaultdict(int)
    for part in bad:
        if part.table != "questions":
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
    policy = _recorded(recipe.policy, inputs.get("policy", ""), ledger)
    judge, verifier = (
        _recorded(model, inputs.get(role, ""), ledger) if model else None
        for role, model in (("judge", recipe.active_judge), ("verifier", recipe.asked_verifier))
    )
    annotator = annotator_for(recipe, policy, judge, verifier, retriever)
    regrown = [await annotator.annotate(question) for question in questions]
    for failure in (annotated.failure for annotated in regrown):
        if failure is not None:  # e.g. the search server failed
            raise StorageError(f"question {failure.question_id}: {failure.detail}")
    return regrown


def _recorded(model: ModelSettings, digest: str, ledger: Ledger) -> LedgeredEngine:
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
