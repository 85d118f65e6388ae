"""`make annotate`: grow a tree for every question, score it, label it, write preference pairs.

    branchwise annotate --config configs/atlas.yaml --run datasets/atlas

Reads the recipe's questions and corpus; writes `trees/`, `pairs/`, `failures.parquet` and the
ledger of the run folder. Every call is in the ledger before it is used, so a run that ends early
continues where it stopped (the same command again): finished questions are skipped, stored calls
are replayed, and the same seed gives the same trees.
"""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

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
from pipelines.inputs import inputs_of
from pipelines.preflight import require, servers, weights
from pipelines.progress import Progress
from pipelines.run import Run, open_run, refuse_unusable
from pipelines.stage import DONE, TOO_MANY_FAILURES, Gate, Invocation, Outcome
from retrieval.interface import Retriever
from sources.load import Data
from storage.ledger import Ledger
from storage.parts import question_ids, read_parts
from storage.records import Question

LABELLING = ("spre", "pairs")
"""Blocks of the recipe that decide labels and pairs."""
OFF_PROTOCOL_SHARE = 0.9
"""Share of invalid replies from which the model, not its luck, is why there are no pairs."""


def annotate(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe = limited(call.recipe, call.limit)
    data = open_data(recipe)
    announce(call, recipe, data)
    # Before the run folder has a recipe in it, which the mended command would not be let change.
    refuse_unusable(call.run)
    require(weights(recipe))
    if call.dry_run:
        return Outcome({"questions": len(data.questions), "dry_run": True})
    if _owing(call.run, data):
        require(servers(recipe))
    retriever = open_index(recipe, data.passages)
    inputs = inputs_of(recipe, data, retriever)
    run = open_run(call.run, recipe, {"data": data.notes}, inputs)
    return asyncio.run(_annotate(call, run, data, retriever))


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


def _owing(run: Path, data: Data) -> bool:
    """Whether a question has no committed tree; a finished run needs no endpoint."""
    done = question_ids(run, "trees") if run.is_dir() else set()
    return any(question.id not in done for question in data.questions)


async def _annotate(call: Invocation, run: Run, data: Data, retriever: Retriever) -> Outcome:
    recipe, questions = run.recipe, data.questions
    progress = Progress("annotate", len(questions), grows=True)
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(Ledger(run.ledger))
        gate = Gate(recipe.limits, ledger.totals)
        committer = Committer(run, ledger, questions, data.notes)
        owed = committer.owed()
        progress.done = progress.resumed_from = len(questions) - len(owed)
        if owed:
            policy = await stack.enter_async_context(
                opened(recipe.policy, recipe, ledger, progress.call, gate.check)
            )
            judge = await _open_judge(stack, recipe, ledger, progress, gate)
            annotator = annotator_for(recipe, policy, judge, retriever)
            await stack.enter_async_context(progress.shown(call.console))
            try:
                with gate.listening():
                    await _work(annotator, owed, gate, committer, progress)
            finally:  # whatever ended the work, what was finished is kept
                totals = committer.finish()
            write_card(run, policy.digest, annotator.provenance.prompt_hash)
        else:
            totals = committer.finish()
    return _close(call, recipe, progress, gate, totals)


async def _open_judge(
    stack: AsyncExitStack, recipe: Recipe, ledger: Ledger, progress: Progress, gate: Gate
) -> Judge | None:
    settings = recipe.asked_judge
    if settings is None:
        return None
    engine = await stack.enter_async_context(
        opened(settings, recipe, ledger, progress.call, gate.check)
    )
    return Judge(engine, settings, recipe.seed)


def annotator_for(
    recipe: Recipe, policy: LedgeredEngine, judge: Judge | None, retriever: Retriever
) -> Annotator:
    """The annotator that the recipe describes."""
    environment = environment_for(recipe, policy, retriever)
    evaluator: Evaluator = (
        JudgeEvaluator(judge, recipe.spre)
        if judge is not None
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
            judge_model=recipe.asked_judge.model if recipe.asked_judge else None,
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

    limit = committer.run.recipe.questions_in_flight
    # Closed here: an error while committing must end the work before engine and ledger close.
    async with aclosing(in_flight(gate.admit(owed), work, limit)) as finished:
        async for annotated in finished:
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
    if not totals["pairs"] and (complaint := off_protocol(call.run, recipe.policy.model)):
        call.say(complaint)
    if gate.reason:
        call.say(f"stopped: {gate.reason}; run the same command again to continue")
        return Outcome(totals, gate.exit_code)
    failed = int(str(totals["questions_failed"]))
    if failed > recipe.limits.max_failed_share * max(progress.total, 1):
        call.say(f"more than limits.max_failed_share of the questions failed; see {call.run}")
        return Outcome(totals, TOO_MANY_FAILURES)
    return Outcome(totals, DONE)


def off_protocol(run: Path, model: str) -> str | None:
    """What to say of a policy that hardly ever wrote an action; null if that is not so."""
    nodes = read_parts(run, "trees", ["depth", "action", "text"]).to_pylist()
    replies = [node for node in nodes if node["depth"]]
    invalid = [node["text"] for node in replies if node["action"] == "invalid"]
    if not invalid or len(invalid) < OFF_PROTOCOL_SHARE * len(replies):
        return None
    # As a literal: a model's escape sequences must not reach the terminal.
    return (
        f"no pairs: {len(invalid)} of {len(replies)} replies of {model} were no action of the "
        f"protocol, such as {invalid[0][:200]!r}. Give another policy.model, teach this one with "
        "`make warm-start`, or let its server constrain what it writes (policy.structured_output)"
    )
