"""`make select`: rates questions by difficulty and draws training stages from them.

    branchwise select --config configs/atlas.yaml --run datasets/atlas

Rolls each question out until the rater's first right answer (R1-Searcher section 2.1), labels it
by the number of that rollout, and draws the questions of `difficulty.stages`. Writes the table
`select/difficulty` and a question file per stage, `select/stage-<name>.jsonl`, into the run folder.
Calls are in the ledger: rerun the command to resume. Labels are kept unless a setting that affects
them has changed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from branchwise.agent import Environment
from branchwise.analysis import LABELS, UNSOLVED, difficulty_of, draw_stages
from branchwise.base import (
    BranchwiseError,
    RetrievalError,
    atomic_write_text,
    digest_of,
    terminal_safe,
)
from branchwise.engines import Sampling, model_digest
from branchwise.evaluation import PolicyUnderTest
from branchwise.rewards import AnswerScores
from branchwise.runs import (
    BAD_INPUT,
    RATING_CALLS,
    DifficultySettings,
    Gate,
    Prepared,
    Progress,
    Run,
    StageContext,
    StageResult,
    answer_settings,
    attempt_each,
    estimate_from_run,
    failure_code,
    log_costs,
    log_notes,
    open_run,
    policy_server,
    prepare,
    questions_digest,
    require,
    retrieval_identity,
    rollout_cost,
    search_server,
)
from branchwise.sources import line_of, load_data, unanswerable
from branchwise.storage import (
    Ledger,
    load_manifest,
    part_number,
    question_ids,
    read_parts,
    table_to_records,
)
from branchwise.types import Difficulty, Failure, Question, counts_by_text

TABLE, FAILURES = "select/difficulty", "select/failures"
PATH = "select/root"
"""Ledger path of the rollouts, distinct from trees and evaluations."""


def select(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    recipe = context.limited_recipe
    rater = recipe.rater(context.run.name)
    unfit = rater.protocol.unfit
    data = load_data(recipe.data, recipe.seed, unfit=lambda q: unanswerable(q) or unfit(q))
    models = {"difficulty.policy": rater.model}
    prepared = prepare(context, models, recipe=recipe, data=data, mixes_rows=False)
    planned = _announce(prepared, rater)
    rows = _valid_rows(prepared, rater)
    pending = [question for question in data.questions if question.id not in rows]
    if context.dry_run:
        most = len(pending) * recipe.difficulty.rollouts
        units, calls = (len(pending), len(pending)), (len(pending), most)
        bounds = rollout_cost(rater, data, recipe.retrieval.top_k).times(calls)
        priced = {"policy": rater.model}
        estimate = estimate_from_run(
            context, RATING_CALLS, TABLE, "question", units, bounds, priced
        )
        return estimate.report(context, **planned)
    if pending:
        require(policy_server("difficulty.policy", rater, recipe.seed, recipe.limits))
        require(search_server(recipe.retrieval))
    # The run may hold trees of another number of questions, which its recipe must keep.
    run = open_run(context.run, recipe, {"data": counts_by_text(data.notes)}, keeps_record=True)
    with run.open_ledger() as ledger:
        gate = prepared.gate(ledger)
        progress = Progress("select", len(data.questions), spent=ledger.totals)
        progress.done = progress.resumed_from = len(rows)
        rated: list[Difficulty | Failure] = []
        if pending:
            with gate.listening():
                rated = asyncio.run(
                    rate_questions(prepared, rater, pending, ledger, gate, progress)
                )
        rows |= {row.question_id: row for row in rated if isinstance(row, Difficulty)}
        failures = [row for row in rated if isinstance(row, Failure)]
        ordered = [rows[question.id] for question in data.questions if question.id in rows]
        _commit(run, ordered, failures)
        totals = {**_counted(context, ordered, failures), **log_costs(context, ledger)}
    if gate.reason:
        return gate.stopped(totals)
    stages = _write_stages(context, run, ordered, data.questions)
    kinds = Counter(failure.kind for failure in failures)
    code = failure_code(context, kinds, len(data.questions), "questions failed")
    if not all(any(stage.values()) for stage in stages.values()):
        code = code or BAD_INPUT
    return StageResult({**totals, "stages": stages}, code)


def _announce(prepared: Prepared, rater: PolicyUnderTest) -> dict[str, int]:
    context, data, protocol = prepared.context, prepared.data, rater.protocol
    rollouts = prepared.recipe.difficulty.rollouts
    most_calls = len(data.questions) * rollouts * protocol.max_calls
    model, folder = terminal_safe(rater.model.model), terminal_safe(str(context.run))
    context.log(
        f"select: {len(data.questions):,} questions over {len(data.passages):,} passages, rater "
        f"{rater.model.engine}:{model} with the protocol {protocol.name} at temperature "
        f"{rater.temperature:g}; run folder {folder}"
    )
    context.log(
        f"cost: at most {most_calls:,} calls of at most {rater.model.max_new_tokens:,} new tokens "
        f"({len(data.questions):,} questions, {rollouts} rollouts each until the first right "
        f"answer, {protocol.max_calls} calls a rollout); those in the ledger are free"
    )
    log_notes(context, prepared.models, data)
    return {"questions": len(data.questions), "most_calls": most_calls}


def _valid_rows(prepared: Prepared, rater: PolicyUnderTest) -> dict[str, Difficulty]:
    """Returns stored rows that the current rater and labels would reproduce.

    None in a dry run without the search server, whose index is a part of the rows' digests.

    Raises:
        RetrievalError: If the search server does not answer.
    """
    context, settings = prepared.context, prepared.recipe.difficulty
    if not (context.run.is_dir() and question_ids(context.run, TABLE)):
        return {}
    try:
        deciding = deciding_digest(prepared, rater)
    except RetrievalError as error:
        if not context.dry_run:
            raise
        context.log(f"note: all questions count as pending, because {error}")
        return {}
    questions = prepared.data.questions
    digests = {question.id: row_digest(deciding, question) for question in questions}
    return {
        row.question_id: row.model_copy(
            update={"label": difficulty_of(row.first_success, settings.easy, settings.medium)}
        )
        for row in table_to_records(read_parts(context.run, TABLE), Difficulty)
        if digests.get(row.question_id) == row.config_digest
    }


def _commit(run: Run, rows: Sequence[Difficulty], failures: Sequence[Failure]) -> None:
    # Into other files, because a kill before the commit must leave the older ones as they were.
    numbers = [part_number(part) for part in load_manifest(run.folder).of(TABLE)]
    number = 1 - max(numbers, default=1)
    parts = [run.write_part(TABLE, rows, number), run.write_part(FAILURES, failures, number)]
    run.commit(parts, replaced=(TABLE, FAILURES))


def _counted(
    context: StageContext, rows: Sequence[Difficulty], failures: Sequence[Failure]
) -> dict[str, Any]:
    labels = Counter(row.label for row in rows)
    counts = {label: labels[label] for label in LABELS}
    rollouts = sum(row.rollouts for row in rows)
    context.log(
        f"{len(rows):,} questions rated in {rollouts:,} rollouts: "
        + ", ".join(f"{count:,} {label}" for label, count in counts.items())
    )
    if rows and counts[UNSOLVED] == len(rows):
        context.log(
            "no rollout was right: does the rater follow its protocol? `make eval` shows it. "
            "Teach it with `make warm-start`, or name another difficulty.policy"
        )
    return {"questions": len(rows), "failed": len(failures), "rollouts": rollouts, **counts}


def _write_stages(
    context: StageContext, run: Run, rows: Sequence[Difficulty], questions: Sequence[Question]
) -> dict[str, dict[str, int]]:
    """Writes a question file for every stage; returns how many questions of each bucket it has."""
    by_id, stages = {question.id: question for question in questions}, run.recipe.difficulty.stages
    buckets_by_stage = draw_stages(rows, stages, run.recipe.seed)
    for stage, buckets in buckets_by_stage.items():
        path = run.folder / "select" / f"stage-{stage}.jsonl"
        chosen = [by_id[row.question_id] for bucket in buckets.values() for row in bucket]
        labels = ", ".join(
            f"{len(bucket):,} of {stages[stage][name]:,} {terminal_safe(name)}"
            for name, bucket in buckets.items()
        )
        if len(chosen) < sum(stages[stage].values()):
            labels += "; fewer than in difficulty.stages, in the same proportions"
        if chosen:
            atomic_write_text(path, "".join(map(line_of, chosen)))
            context.log(f"{terminal_safe(str(path))}: {len(chosen):,} questions ({labels})")
        else:
            path.unlink(missing_ok=True)
            context.log(
                f"stage {stage} has no questions ({labels}). Rate more questions (data.limit), or "
                "set other labels in difficulty.stages"
            )
    return {
        stage: {name: len(bucket) for name, bucket in buckets.items()}
        for stage, buckets in buckets_by_stage.items()
    }


async def rate_questions(
    prepared: Prepared,
    rater: PolicyUnderTest,
    pending: Sequence[Question],
    ledger: Ledger,
    gate: Gate,
    progress: Progress,
) -> list[Difficulty | Failure]:
    """Rates questions until the gate closes.

    Raises:
        EndpointError: If a fault is fatal; a fault of a single question becomes a `Failure`.
    """
    settings, limits = prepared.recipe.difficulty, prepared.recipe.limits
    opened = prepared.open_engine(rater.model, ledger, gate)
    async with opened as engine, progress.shown(prepared.context.console):
        progress.watch(engine)
        environment = prepared.environment(engine, rater.protocol)
        deciding = deciding_digest(prepared, rater)
        rate = partial(_rate, settings, environment, rater.sampling, deciding)
        at_once = limits.questions_in_flight(rater.model)
        return [
            Failure.of(question.id, "select", row) if isinstance(row, BranchwiseError) else row
            async for question, row in attempt_each(gate.admit(pending), rate, at_once, progress)
        ]


def deciding_digest(prepared: Prepared, rater: PolicyUnderTest) -> str:
    """Returns the hash of all settings that affect a rater's rollouts."""
    recipe = prepared.recipe
    deciding = {
        "seed": recipe.seed,
        "retrieval": retrieval_identity(recipe.retrieval),
        **answer_settings(rater, recipe),
        "model": model_digest(rater.model),
        "index": prepared.retriever.digest,
        "rollouts": recipe.difficulty.rollouts,
    }
    return digest_of(json.dumps(deciding, sort_keys=True))


def row_digest(deciding: str, question: Question) -> str:
    """Returns the `config_digest` of a question's row."""
    return digest_of(deciding, questions_digest([question]))[:12]


async def _rate(
    settings: DifficultySettings,
    environment: Environment,
    sampling: Sampling,
    deciding: str,
    question: Question,
) -> Difficulty:
    root, tokens, first = await environment.root(question), 0, None
    for draw in range(settings.rollouts):
        rollout = await environment.trajectory(
            root, sampling, question_id=question.id, path=PATH, draw=draw
        )
        tokens += rollout.usage.output_tokens
        if AnswerScores.of(rollout.state.answer, question.answers).cover_em:
            first = draw + 1
            break
    return Difficulty(
        question_id=question.id,
        source=question.source,
        label=difficulty_of(first, settings.easy, settings.medium),
        rollouts=first or settings.rollouts,
        first_success=first,
        seed=environment.seed,
        output_tokens=tokens,
        policy_digest=environment.engine.digest,
        config_digest=row_digest(deciding, question),
    )
