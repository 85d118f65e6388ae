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
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

from rich.console import RenderableType

from branchwise.analysis import EVERYTHING, compare, render_markdown, render_table
from branchwise.base import atomic_write_json, atomic_write_text, digest_of
from branchwise.evaluation import Evaluated, fitting_questions
from branchwise.runs import (
    DONE,
    EVALUATION_CALLS,
    TOO_MANY_FAILURES,
    ByType,
    CostEstimate,
    CostRange,
    Prepared,
    Run,
    StageContext,
    StageResult,
    call_cost,
    check_no_overlap,
    estimate_from_run,
    evaluation_data,
    evaluation_identity,
    failure_code,
    log_costs,
    log_notes,
    open_run,
    prepare,
    prompt_lengths,
    rollout_cost,
    set_name,
)
from branchwise.sources import LEFT_OUT

from .answer_judging import AnswerJudging, stored_answers
from .candidates import (
    PolicyEvaluation,
    baseline_candidates,
    policy_candidates,
)


def evaluate(context: StageContext, by_type: ByType = False) -> StageResult:
    """Runs the stage (see module)."""
    recipe, models = context.recipe, context.recipe.evaluated_models(context.run.name)
    data = evaluation_data(recipe, context.limit)
    prepared = prepare(context, models, recipe=recipe, data=data)
    _announce(prepared)
    if context.dry_run:
        return _estimate(prepared).report(context, questions=len(data.questions))
    policies = recipe.policies_under_test(context.run.name)
    check_no_overlap(context.run, policies.values(), data.questions)
    facts = {"index_digest": prepared.retriever.digest}
    run = open_run(context.run, recipe, facts, keeps_record=True)
    candidates = [*policy_candidates(prepared), *baseline_candidates(prepared)]
    deciding = {candidate.name: candidate.deciding for candidate in candidates}
    settings = evaluation_identity(prepared, deciding)
    name = f"{set_name(recipe)}-{digest_of(json.dumps(settings, sort_keys=True))[:6]}"
    judging = AnswerJudging.of(recipe)
    identity = settings if judging is None else {**settings, "judge": judging.deciding}
    with run.open_ledger() as ledger:
        atomic_write_json(run.folder / "eval" / f"{name}.json", identity)
        gate = prepared.gate(ledger)
        answers = {
            candidate.name: stored
            for candidate in candidates
            if judging and (stored := stored_answers(run, candidate, name))
        }
        evaluation = PolicyEvaluation(prepared, ledger, gate)
        unanswered = [candidate for candidate in candidates if candidate.name not in answers]
        for policy, evaluated in evaluation.answers(unanswered):
            if evaluated.pending:
                return gate.stopped({"policies": list(answers), **log_costs(context, ledger)})
            _write(run, policy, name, evaluated)
            answers[policy] = evaluated
        answers = {candidate.name: answers[candidate.name] for candidate in candidates}
        if judging is not None:
            judged = judging.judge(prepared, ledger, gate, answers)
            if judged is None:
                return gate.stopped({"policies": list(answers), **log_costs(context, ledger)})
            for policy, evaluated in judged.items():
                _write(run, policy, name, evaluated)
            answers = judged
        totals, table = _report(context, run, name, answers, by_type=by_type)
        totals |= log_costs(context, ledger)
    return StageResult(totals, _exit_code(context, answers), table=table)


def _announce(prepared: Prepared) -> None:
    """Logs policies and questions, and what was noted about them."""
    context, recipe, data = prepared.context, prepared.recipe, prepared.data
    policies = recipe.policies_under_test(context.run.name)
    described = [f"{k} ({p.model.model}, {p.agent.protocol})" for k, p in policies.items()]
    context.log(
        f"eval: {len(data.questions)} questions of {set_name(recipe)}, policies "
        + ", ".join((*described, *recipe.evaluation.baselines))
    )
    for line in data.describe_notes(LEFT_OUT):
        context.log(line)
    log_notes(context, prepared.models)
    if recipe.answer_judge is not None:
        most = len(data.questions) * (len(policies) + len(recipe.evaluation.baselines))
        context.log(f"judge: at most {most} calls of {recipe.answer_judge.model}")


def _estimate(prepared: Prepared) -> CostEstimate:
    context, recipe, data = prepared.context, prepared.recipe, prepared.data
    top_k, bounds, answers = recipe.retrieval.top_k, CostRange(), 0
    policies = list(recipe.policies_under_test(context.run.name).values())
    for policy in policies:
        number = len(fitting_questions(data.questions, policy.protocol)[0])
        bounds += rollout_cost(policy, data, top_k).times((number, number))
        answers += number
    baselines = len(data.questions) * len(set(recipe.evaluation.baselines) - {"majority"})
    reader = recipe.reader(context.run.name)
    bounds += rollout_cost(reader, data, top_k).times((0, baselines))  # `oracle` may lack passages
    units = (answers, answers + baselines)
    first, *further_models = [
        policy.model for policy in ([*policies, reader] if baselines else policies)
    ]
    has_one_price = all(
        model.price_per_million == first.price_per_million for model in further_models
    )
    priced = {"policy": first} if has_one_price else None
    estimate = estimate_from_run(context, EVALUATION_CALLS, None, "answer", units, bounds, priced)
    if recipe.answer_judge is None:
        return estimate
    prompt = prompt_lengths(prepared.protocol, data, top_k, recipe.policy.max_new_tokens)
    judged = call_cost(recipe.answer_judge, prompt, (0, answers + baselines))
    return replace(estimate, cost=estimate.cost + judged)


def _write(run: Run, policy: str, name: str, evaluated: Evaluated) -> None:
    predictions = [row.model_copy(update={"evaluation": name}) for row in evaluated.predictions]
    folder = f"eval/{policy}/{name}"
    parts = (
        run.write_part(f"{folder}/predictions", predictions),
        run.write_part(f"{folder}/failures", evaluated.failures),
    )
    run.commit(parts)


def _report(
    context: StageContext, run: Run, name: str, answers: dict[str, Evaluated], *, by_type: bool
) -> tuple[dict[str, Any], RenderableType]:
    """Prints and writes the comparison; returns its totals and the printed table."""
    comparison = compare(
        {policy: evaluated.predictions for policy, evaluated in answers.items()},
        {policy: evaluated.unanswered for policy, evaluated in answers.items()},
        references=context.recipe.evaluation.baselines,
        seed=run.recipe.seed,
    )
    table = render_table(comparison, by_type=by_type)
    context.console.print(table)
    for first, second in _with_equal_answers(answers):
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


def _with_equal_answers(answers: dict[str, Evaluated]) -> Iterator[tuple[str, str]]:
    """Yields the names of policies that took the same steps to the same answers."""
    steps = {
        name: {row.question_id: row.trajectory for row in evaluated.predictions}
        for name, evaluated in answers.items()
    }
    for first, second in combinations(steps, 2):
        if steps[first] and steps[first] == steps[second]:
            yield first, second


def _exit_code(context: StageContext, answers: dict[str, Evaluated]) -> int:
    code = DONE
    for policy, evaluated in answers.items():
        kinds = Counter(failure.kind for failure in evaluated.failures)
        questions = len(evaluated.failures) + len(evaluated.predictions)
        description = f"questions failed under {policy} and count as wrong"
        messages = [failure.detail for failure in evaluated.failures]
        code = failure_code(context, kinds, questions, description, messages) or code
    rows = [row for evaluated in answers.values() for row in evaluated.predictions]
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
