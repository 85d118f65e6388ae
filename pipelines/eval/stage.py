"""`make eval`: evaluates policies on a question set and prints one table.

    branchwise eval --config configs/atlas.yaml --run datasets/atlas

All policies of `evaluation.policies` and all baselines answer the same questions of split `test`,
greedily and under the same structured decoding. Predictions, failures and metrics go to
`eval/<policy>/<set>/` of the run folder, the table to `eval/<set>.md`, and all settings that affect
it to `eval/<set>.json`. `<set>` ends in a hash of those settings, so that other evaluations do not
overwrite it. Calls are in the ledger: rerun the command to resume. `evaluation.judge` judges
stored answers; new verdicts replace earlier ones.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

from rich.console import RenderableType

from branchwise.agent import protocol_of
from branchwise.analysis import EVERYTHING, compare, render_markdown, render_table
from branchwise.base import atomic_write_json, atomic_write_text, digest_of
from branchwise.evaluation import Evaluated, askable
from branchwise.runs import (
    DONE,
    EVALUATION_CALLS,
    TOO_MANY_FAILURES,
    ByType,
    CostEstimate,
    CostRange,
    Gate,
    Recipe,
    Run,
    StageContext,
    StageResult,
    call_cost,
    check_no_overlap,
    check_run_folder,
    estimate_from_run,
    evaluation_data,
    evaluation_identity,
    failure_code,
    log_costs,
    log_notes,
    open_index,
    open_or_begin,
    rollout_cost,
    set_name,
)
from branchwise.sources import LEFT_OUT, Data
from branchwise.storage import Ledger

from .answer_judging import AnswerJudging, stored_answers
from .candidates import (
    PolicyEvaluation,
    baseline_candidates,
    policies_of,
    policy_candidate,
)


def evaluate(context: StageContext, by_type: ByType = False) -> StageResult:
    """Runs the stage (see module)."""
    recipe = context.recipe
    check_run_folder(context.run)
    policies = policies_of(recipe, context.run)
    data = evaluation_data(recipe, context.limit)
    named = [f"{k} ({p.policy.model}, {p.agent.protocol})" for k, p in policies.items()]
    context.log(
        f"eval: {len(data.questions)} questions of {set_name(recipe)}, policies "
        + ", ".join((*named, *recipe.evaluation.baselines))
    )
    for line in data.describe_notes(LEFT_OUT):
        context.log(line)
    log_notes(context, recipe)
    if recipe.answer_judge is not None:
        most = len(data.questions) * (len(policies) + len(recipe.evaluation.baselines))
        context.log(f"judge: at most {most} calls of {recipe.answer_judge.model}")
    if context.dry_run:
        estimate = _estimate(context, policies.values(), data)
        return estimate.report(context, questions=len(data.questions))
    check_no_overlap(context.run, policies.values(), data.questions)
    retriever = open_index(recipe, data.passages, context.log)
    run = open_or_begin(context.run, recipe, {"index_digest": retriever.digest})
    candidates = [policy_candidate(*item, recipe, data) for item in policies.items()]
    candidates += baseline_candidates(recipe, context.run, data, retriever, context.log)
    deciding = {candidate.name: candidate.deciding for candidate in candidates}
    settings = evaluation_identity(recipe, context.limit, deciding, data, retriever)
    name = f"{set_name(recipe)}-{digest_of(json.dumps(settings, sort_keys=True))[:6]}"
    judging = AnswerJudging.of(recipe)
    about = settings if judging is None else {**settings, "judge": judging.deciding}
    with run.open_ledger() as ledger:
        atomic_write_json(run.folder / "eval" / f"{name}.json", about)
        gate = Gate(recipe.limits, ledger.totals, context.log)
        done = {
            candidate.name: stored
            for candidate in candidates
            if judging and (stored := stored_answers(run, candidate, name))
        }
        evaluation = PolicyEvaluation(context, retriever, ledger, gate)
        for policy, answered in evaluation.answers(c for c in candidates if c.name not in done):
            if answered.pending:
                return _stopped(context, gate, ledger, list(done))
            _write(run, policy, name, answered)
            done[policy] = answered
        done = {candidate.name: done[candidate.name] for candidate in candidates}
        if judging is not None:
            judged = judging.judge(context, ledger, gate, done, data.questions)
            if judged is None:
                return _stopped(context, gate, ledger, list(done))
            for policy, answered in judged.items():
                _write(run, policy, name, answered)
            done = judged
        totals, table = _report(context, run, name, done, by_type=by_type)
        totals |= log_costs(context, ledger)
    return StageResult(totals, _exit_code(context, done), table=table)


def _estimate(context: StageContext, policies: Collection[Recipe], data: Data) -> CostEstimate:
    recipe, bounds, answers = context.recipe, CostRange(), 0
    for policy in policies:
        number = len(askable(data.questions, protocol_of(policy.agent))[0])
        bounds += rollout_cost(policy, data).times((number, number))
        answers += number
    baselines = len(data.questions) * len(set(recipe.evaluation.baselines) - {"majority"})
    reader = recipe.reader_recipe(context.run.name)
    bounds += rollout_cost(reader, data).times((0, baselines))  # `oracle` may lack passages
    units = (answers, answers + baselines)
    first, *others = [*policies, reader] if baselines else policies
    price = first.policy.price_per_million
    has_one_price = all(other.policy.price_per_million == price for other in others)
    priced = first if has_one_price else None
    estimate = estimate_from_run(context, EVALUATION_CALLS, None, "answer", units, bounds, priced)
    if recipe.answer_judge is None:
        return estimate
    judged = call_cost(recipe, data, recipe.answer_judge, (0, answers + baselines))
    return replace(estimate, cost=estimate.cost + judged)


def _stopped(context: StageContext, gate: Gate, ledger: Ledger, policies: list[str]) -> StageResult:
    """Logs why the stage stopped; answers of the policies in `policies` are kept."""
    context.log(f"stopped: {gate.reason}; rerun the same command to resume")
    totals = {"policies": policies, **log_costs(context, ledger)}
    return StageResult(totals, gate.exit_code, gate.reason)


def _write(run: Run, policy: str, name: str, answered: Evaluated) -> None:
    predictions = [row.model_copy(update={"evaluation": name}) for row in answered.predictions]
    folder = f"eval/{policy}/{name}"
    parts = (
        run.write_part(f"{folder}/predictions", predictions),
        run.write_part(f"{folder}/failures", answered.failures),
    )
    run.commit(parts)


def _report(
    context: StageContext, run: Run, name: str, done: dict[str, Evaluated], *, by_type: bool
) -> tuple[dict[str, Any], RenderableType]:
    """Prints and writes the comparison; returns its totals and the printed table."""
    comparison = compare(
        {policy: answered.predictions for policy, answered in done.items()},
        {policy: answered.unanswered for policy, answered in done.items()},
        references=context.recipe.evaluation.baselines,
        seed=run.recipe.seed,
    )
    table = render_table(comparison, by_type=by_type)
    context.console.print(table)
    for first, second in _with_equal_answers(done):
        context.log(
            f"note: {first} and {second} take the same steps in every question: they are the same "
            "policy, or its training changed too little"
        )
    rows = [row.totals() for row in comparison.rows if row.stratum == EVERYTHING]
    for row in rows:
        differences = [
            {"baseline": paired.baseline, **asdict(paired.interval)}
            for paired in comparison.differences
            if (paired.policy, paired.stratum, paired.metric) == (row["policy"], EVERYTHING, "em")
        ]
        folder = run.folder / "eval" / row["policy"] / name
        atomic_write_json(folder / "metrics.json", {**row, "differences": differences})
    atomic_write_text(run.folder / "eval" / f"{name}.md", render_markdown(comparison))
    has_more = any(row.stratum != EVERYTHING for row in comparison.rows) and not by_type
    more = ", also by type, hops and guessability" if has_more else ""
    context.log(f"wrote {run.folder / 'eval' / name}.md{more}")
    return {"set": name, "policies": rows}, table


def _with_equal_answers(done: dict[str, Evaluated]) -> Iterator[tuple[str, str]]:
    """Yields the names of policies that took the same steps to the same answers."""
    answers = {
        name: {row.question_id: row.trajectory for row in answered.predictions}
        for name, answered in done.items()
    }
    for (first, of_first), (second, of_second) in combinations(answers.items(), 2):
        if of_first and of_first == of_second:
            yield first, second


def _exit_code(context: StageContext, done: dict[str, Evaluated]) -> int:
    code = DONE
    for policy, answered in done.items():
        kinds = Counter(failure.kind for failure in answered.failures)
        questions = len(answered.failures) + len(answered.predictions)
        what = f"questions failed under {policy} and count as wrong"
        messages = [failure.detail for failure in answered.failures]
        code = failure_code(context, kinds, questions, what, messages) or code
    rows = [row for answered in done.values() for row in answered.predictions]
    judged = [row for row in rows if row.em is not None]
    unread = sum(row.judge is None for row in judged) if context.recipe.evaluation.judge else 0
    if unread > context.recipe.limits.max_failed_share * len(judged):
        context.log(
            f"judge: {unread} of {len(judged)} answers lack a readable verdict; its replies: "
            "`branchwise inspect \"select text, finish_reason from calls where role = 'judge'\"`. "
            "Use a larger judge; if its replies are cut, raise judge.max_new_tokens"
        )
        code = TOO_MANY_FAILURES
    return code
