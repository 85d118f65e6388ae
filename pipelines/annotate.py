"""`make annotate`: grow a tree for every question, score it, label it, write preference pairs.

    branchwise annotate --config configs/atlas.yaml --run datasets/atlas

Reads the recipe's questions and corpus; writes `trees/`, `pairs/`, `failures.parquet` and the
ledger of the run folder. Every call is in the ledger before it is used, so a run that ends early
continues where it stopped (the same command again): finished questions are skipped, stored calls
are replayed, and the same seed gives the same trees.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from annotation.annotator import Annotated, Annotator, in_flight
from annotation.evaluators import Evaluator, JudgeEvaluator, RolloutEvaluator
from annotation.judge import Judge
from annotation.rows import Provenance
from engines.ledgered import LedgeredEngine
from pipelines.assemble import (
    environment_for,
    open_data,
    open_index,
    opened,
    sampling_for,
)
from pipelines.card import write_card
from pipelines.commit import Committer
from pipelines.config import Recipe
from pipelines.progress import Progress
from pipelines.run import Run, open_run
from pipelines.stage import DONE, TOO_MANY_FAILURES, Gate, Invocation, Outcome
from retrieval.interface import Retriever
from sources.load import Data
from storage.ledger import Ledger
from storage.records import Question

LABELLING = ("spre", "pairs")
"""Blocks of the recipe that decide labels and pairs."""


def annotate(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe = limited(call.recipe, call.limit)
    data = open_data(recipe)
    announce(call, recipe, data)
    if call.dry_run:
        return Outcome({"questions": len(data.questions), "dry_run": True})
    retriever = open_index(recipe, data.passages)
    run = open_run(call.run, recipe, {"index_digest": retriever.digest, "data": data.notes})
    return asyncio.run(_annotate(call, run, data.questions, retriever))


def limited(recipe: Recipe, limit: int | None) -> Recipe:
    """The recipe with `--limit` in place of its own."""
    if limit is None:
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"limit": limit})})


def announce(call: Invocation, recipe: Recipe, data: Data) -> None:
    """Say what will happen before anything is paid for."""
    search = recipe.mcts
    call.say(
        f"annotate: {len(data.questions)} questions over {len(data.passages):,} passages, "
        f"{search.iterations} iterations, up to {search.max_children} children, "
        f"evaluator {search.evaluator}, estimator {recipe.estimator}"
    )
    call.say(f"policy {recipe.policy.engine}:{recipe.policy.model}; run folder {call.run}")
    for note, count in sorted(data.notes.items()):
        call.say(f"data: {note}: {count}")


async def _annotate(
    call: Invocation, run: Run, questions: Sequence[Question], retriever: Retriever
) -> Outcome:
    recipe = run.recipe
    progress = Progress("annotate", len(questions), grows=True)
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(Ledger(run.ledger))
        gate = Gate(recipe.limits, ledger.totals)
        committer = Committer(run, ledger, questions)
        owed = committer.owed()
        progress.done = progress.resumed_from = len(questions) - len(owed)
        if owed:
            policy = await stack.enter_async_context(
                opened(recipe.policy, recipe, ledger, progress.call)
            )
            judge = await _open_judge(stack, recipe, ledger, progress)
            annotator = annotator_for(recipe, policy, judge, retriever)
            await stack.enter_async_context(progress.shown(call.console))
            with gate.listening():
                await _work(annotator, owed, gate, committer, progress)
            totals = committer.finish()
            write_card(run, policy.digest, annotator.provenance.prompt_hash)
        else:
            totals = committer.finish()
    return _close(call, recipe, progress, gate, totals)


async def _open_judge(
    stack: AsyncExitStack, recipe: Recipe, ledger: Ledger, progress: Progress
) -> Judge | None:
    if recipe.judge is None:
        return None
    engine = await stack.enter_async_context(opened(recipe.judge, recipe, ledger, progress.call))
    return Judge(engine, recipe.judge, recipe.seed)


def annotator_for(
    recipe: Recipe, policy: LedgeredEngine, judge: Judge | None, retriever: Retriever
) -> Annotator:
    """The annotator that the recipe describes."""
    environment = environment_for(recipe, policy, retriever)
    evaluator: Evaluator = (
        JudgeEvaluator(judge, recipe.spre)
        if judge is not None and recipe.mcts.evaluator == "judge"
        else RolloutEvaluator(environment, sampling_for(recipe.policy), recipe.spre)
    )
    return Annotator(
        environment=environment,
        evaluator=evaluator,
        search=recipe.mcts,
        spre=recipe.spre,
        estimator=recipe.estimator,
        pairs=recipe.pairs,
        sampling=sampling_for(recipe.policy, recipe.mcts.temperature),
        provenance=Provenance(
            seed=recipe.seed,
            cycle=0,
            policy_model=policy.model,
            policy_digest=policy.digest,
            judge_model=recipe.judge.model if recipe.judge else None,
            prompt_hash=environment.protocol.prompt_hash,
            label_digest=recipe.digest(*LABELLING),
            config_digest=recipe.digest(),
        ),
    )


async def _work(
    annotator: Annotator,
    owed: list[Question],
    gate: Gate,
    committer: Committer,
    progress: Progress,
) -> None:
    """Annotate what is owed; every finished question is committed as it comes."""

    async def work(question: Question) -> Annotated:
        progress.in_flight += 1
        try:
            return await annotator.annotate(question)
        finally:
            progress.in_flight -= 1

    limit = committer.run.recipe.limits.max_questions_in_flight
    async for annotated in in_flight(gate.admit(owed), work, limit):
        committer.add(annotated)
        progress.done += 1
        progress.failed += annotated.failure is not None
        progress.pairs += len(annotated.pairs)
        progress.rewards += [n.reward for n in annotated.nodes if n.reward is not None]


def _close(
    call: Invocation, recipe: Recipe, progress: Progress, gate: Gate, totals: dict[str, object]
) -> Outcome:
    """Closing table and exit code."""
    progress.counts.update(totals["counts"])  # type: ignore[call-overload]
    call.console.print(progress.closing_table())
    call.say(
        f"{totals['questions_done']} questions done, {totals['questions_failed']} failed, "
        f"{totals['pairs']} pairs, {totals['calls']} calls in the ledger"
    )
    if gate.reason:
        call.say(f"stopped: {gate.reason}; run the same command again to continue")
        return Outcome(totals, gate.exit_code)
    failed = int(str(totals["questions_failed"]))
    if failed > recipe.limits.max_failed_share * max(progress.total, 1):
        call.say(f"more than limits.max_failed_share of the questions failed; see {call.run}")
        return Outcome(totals, TOO_MANY_FAILURES)
    return Outcome(totals, DONE)
