"""`make annotate`: grows a tree per question, scores it, labels it, and writes preference pairs.

    branchwise annotate --config configs/atlas.yaml --run datasets/atlas

Reads the recipe's questions and corpus; writes `trees/`, `pairs/`, `failures.parquet` and the
ledger into the run folder. Every call is stored in the ledger before it is used. To resume a run
that ended early, rerun the command: finished questions are skipped, stored calls are replayed, and
the same seed gives the same trees. `--replay` only replays: it finishes the questions whose calls
are all stored, even if the models are gone. `--reread DIR` starts a new run whose replies come from
the calls of the run DIR, read again with the present reader and `reasoning:`. Only calls that
follow from another reading are new.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc

from branchwise.base import ConfigError, Sheet, StorageError, terminal_safe
from branchwise.runs import (
    LIMIT_REACHED,
    TREE_CALLS,
    Prepared,
    Progress,
    Recipe,
    Reread,
    Run,
    StageContext,
    StageResult,
    adds_questions,
    annotation_inputs,
    bound_of_tree,
    check_not_fewer,
    describe_costs,
    describe_search,
    empty_reply_advice,
    estimate_from_run,
    existing_run,
    failure_code,
    grow_questions,
    identity,
    log_notes,
    noted_model_digests,
    open_run,
    outdated_weights_warning,
    prepare,
    require,
    reward_model_files,
    servers,
    write_card,
)
from branchwise.storage import question_ids, read_parts
from branchwise.types import Event, EventKind, counts_by_text

from .commit import Committer

INVALID_REPLY_WARNING_SHARE = 0.9
"""Share of invalid replies from which the model is the reason for missing pairs."""


def annotate(
    context: StageContext,
    replay: Annotated[bool, "only use stored calls; needs no model"] = False,
    reread: Annotated[Path | None, "run whose stored replies are read again, not paid"] = None,
) -> StageResult:
    """Runs the stage (see module)."""
    if replay and reread is not None:
        raise ConfigError("--reread makes a new run, which has no calls to --replay: drop one")
    earlier = None if reread is None else _earlier_run(context, reread)
    replayed = noted_model_digests(existing_run(context.run)) if replay else None
    models = context.recipe.annotating_models
    prepared = prepare(context, models, replayed=replayed, mixes_rows=False)
    if replayed is None:
        require(reward_model_files(prepared.recipe.active_reward_model))
    _announce(prepared)
    questions = prepared.data.questions
    finished_ids = question_ids(context.run, "trees") if context.run.is_dir() else set()
    pending = sum(question.id not in finished_ids for question in questions)
    if context.dry_run:
        units = pending, pending
        bounds = bound_of_tree(prepared).times(units)
        estimate = estimate_from_run(
            context, TREE_CALLS, "trees", "question", units, bounds, models
        )
        return estimate.report(context, questions=len(questions))
    if pending and replayed is None:  # a finished run needs no server
        require(servers(prepared.recipe))
    extended = ("questions",) if adds_questions(context.run, questions) else ()
    facts = {"data": counts_by_text(prepared.data.notes)}
    inputs = annotation_inputs(prepared, searches=pending > 0)
    run = open_run(context.run, prepared.recipe, facts, inputs, extended)
    with ExitStack() as stack:
        rereading = None
        if earlier is not None:
            calls = stack.enter_context(earlier.open_ledger())
            rereading = Reread(calls, noted_model_digests(earlier))
        return asyncio.run(_grow(prepared, run, rereading))


def _earlier_run(context: StageContext, folder: Path) -> Run:
    """Returns the run whose replies are read again.

    Raises:
        ConfigError: If it is this run, or its models differ in more than `reasoning`.
    """
    if folder.resolve() == context.run.resolve():
        raise ConfigError("--reread: names this run; give a new --run folder")
    run = existing_run(folder)
    before, now = (_models(recipe) for recipe in (run.recipe, context.recipe))
    for role in now.keys() & before.keys():
        changed = [name for name, value in now[role].items() if value != before[role].get(name)]
        if changed:
            raise ConfigError(
                f"--reread: {role}.{changed[0]} is not that of {folder}, so its replies are not "
                f"those of this {role}; only `reasoning` may differ"
            )
    return run


def _models(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Returns the settings of each model that decide its replies, but not how they are read."""
    models = recipe.annotating_models.items()
    return {role: identity(model) | {"reasoning": "auto"} for role, model in models}


def _announce(prepared: Prepared) -> None:
    """Logs the plan and what was noted about it.

    Raises:
        ConfigError: If the plan cannot work, or would leave out questions of the run.
    """
    context, recipe, data = prepared.context, prepared.recipe, prepared.data
    if recipe.pairs.confirmed:
        raise ConfigError(
            "pairs.confirmed: needs fresh rollouts of the finished trees. Annotate without it, "
            "then run `branchwise diagnose` and `branchwise relabel --set pairs.confirmed=true`"
        )
    context.log(
        f"annotate: {len(data.questions)} questions over {len(data.passages):,} passages, "
        f"{describe_search(recipe.mcts)}, labels: {prepared.scheme.describe()}"
    )
    policy = f"{recipe.policy.engine}:{terminal_safe(recipe.policy.model)}"
    context.log(f"policy {policy}; run folder {terminal_safe(str(context.run))}")
    log_notes(context, prepared.models, data)
    check_not_fewer(context.run, data.questions, recipe.data.limit)
    if warning := outdated_weights_warning(recipe):
        context.log(warning)


async def _grow(prepared: Prepared, run: Run, reread: Reread | None) -> StageResult:
    """Grows the pending trees, commits them, and reports."""
    context, recipe, data = prepared.context, prepared.recipe, prepared.data
    with run.open_ledger() as ledger:
        committer = Committer(run, ledger, data.questions, prepared.digests)
        pending = committer.pending()
        gate = prepared.gate(ledger)
        progress = Progress("annotate", len(data.questions), grows=True, spent=ledger.totals)
        progress.done = progress.resumed_from = len(data.questions) - len(pending)
        growing = grow_questions(prepared, pending, ledger, gate, progress, reread)
        with gate.listening():
            try:
                if pending:
                    async with progress.shown(context.console), aclosing(growing) as finished:
                        async for annotated in finished:
                            committer.add(annotated)
            except BaseException:
                with suppress(StorageError):  # report the first error, not this one
                    committer.finish()
                raise
            totals, events = committer.finish()
            write_card(run)
        spent, *caveats = describe_costs(ledger, recipe.limits)
        caveats += empty_reply_advice(ledger)
    notes = {f"data: {note}": n for note, n in data.notes.items()}
    totals["counts"] = notes | counts_by_text(events)
    _log_totals(context, recipe, totals, spent, caveats)
    if not totals["pairs"] and totals["questions_done"]:
        reason = protocol_warning(context.run, recipe.policy.model)
        context.log(reason or no_pairs_reason(events))
    if gate.reason:
        return gate.stopped(totals)
    if not_stored := progress.total - progress.done:
        reason = (
            f"{not_stored} questions need calls that the ledger does not have: run `branchwise "
            "annotate` without --replay"
        )
        context.log(reason)
        return StageResult(totals, LIMIT_REACHED, reason)
    failed = _by_reason(events, EventKind.QUESTION_FAILED)
    messages = read_parts(run.folder, "failures", ["detail"])["detail"].to_pylist()
    code = failure_code(context, failed, progress.total, "questions failed", messages)
    return StageResult(totals, code)


def _log_totals(
    context: StageContext, recipe: Recipe, totals: dict[str, Any], spent: str, caveats: list[str]
) -> None:
    """Prints everything dropped or noted, by reason, and what was written at which cost."""
    rows = tuple((reason, f"{count:,}") for reason, count in sorted(totals["counts"].items()))
    context.console.print(Sheet("annotate: counted", ("what", "n"), rows).text())
    context.log(
        f"wrote {terminal_safe(str(context.run))}: {totals['questions_done']} questions done, "
        f"{totals['questions_failed']} failed, {totals['pairs']} pairs, {spent}"
    )
    for caveat in caveats:
        context.log(caveat)


ADVICE = {
    "small_gap": "lower pairs.min_gap, or raise mcts.iterations or mcts.rollouts",
    "unlabelled": "raise mcts.iterations, so that more steps get a label",
    "few_outcomes": "lower pairs.min_outcomes, or raise mcts.iterations",
    "unscored": "raise training.reward_model.max_length and train the reward model again, or set "
    "pairs.score to labels",
    "guessable": "set pairs.guessable to keep, or choose other questions",
}
"""What to change if pairs are dropped for a reason; for other reasons, the setting of that name."""


def _by_reason(events: Mapping[Event, int], kind: EventKind) -> Counter[str]:
    return Counter({event.reason: n for event, n in events.items() if event.kind is kind})


def no_pairs_reason(events: Mapping[Event, int]) -> str:
    """Returns why a run has no pairs, and what to change, from its events."""
    dropped = _by_reason(events, EventKind.PAIR_DROPPED)
    if not dropped:
        return (
            "no pairs: no step has two different children. Raise mcts.max_children, "
            "mcts.iterations or policy.temperature"
        )
    ((reason, most),) = dropped.most_common(1)
    advice = ADVICE.get(reason, "see `pairs` in docs/settings.md")
    return (
        f"no pairs: {most:,} of {dropped.total():,} candidates were dropped because of "
        f"`{reason}`: {advice}"
    )


def protocol_warning(run: Path, model: str) -> str | None:
    """Returns a warning if almost no reply was a valid action, else None."""
    replies = read_parts(run, "trees", ["depth", "action", "text"]).filter(pc.field("depth") > 0)
    invalid = replies.filter(pc.field("action") == "invalid")["text"]
    if not len(invalid) or len(invalid) < INVALID_REPLY_WARNING_SHARE * len(replies):
        return None
    first = next((text for text in invalid.to_pylist() if text), None)
    if first is None:
        return f"no pairs: {len(invalid)} of {len(replies)} replies of {model} were empty"
    return (
        f"no pairs: {len(invalid)} of {len(replies)} replies of {model} were not actions of the "
        f"protocol, such as '{terminal_safe(first[:200])}'. Choose another policy.model, train "
        "this one with `make warm-start`, or constrain its replies with policy.structured_output"
    )
