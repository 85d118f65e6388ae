"""`make eval`: policies on a question set, and one table of what they do.

    branchwise eval --config configs/atlas.yaml --run datasets/atlas

Every policy of `evaluation.policies` answers the same questions of the part `test`, greedily and
under the same structured decoding; so does every one of `evaluation.baselines`. Predictions,
failures and metrics lie in `eval/<policy>/<set>/` of the run folder, the table in `eval/<set>.md`
and what decides it in `eval/<set>.json`; `<set>` ends in a hash of that, so evaluations of other
settings, questions or weights lie side by side. Calls are in a ledger, so an interrupted
evaluation continues. `evaluation.judge` judges the answers afterwards, stored ones, too: they are
not asked for again, and other verdicts replace those that the rows have.
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

from analysis.comparison import EVERYTHING, compare
from analysis.tables import render_markdown, render_table
from evaluation.run import Evaluated
from retrieval.interface import Retriever
from runs.assemble import open_index
from runs.candidates import baseline_candidates, policies_of, policy_candidates
from runs.evaluation import PolicyEvaluation
from runs.evaluation_set import (
    deciding_settings,
    evaluation_data,
    name_apart,
    refuse_overlap,
    set_name,
)
from runs.folder import Run, open_run, refuse_unusable, run_with
from runs.judging import AnswerJudging, stored_answers
from runs.preflight import overheard
from runs.spending import in_words, spending
from runs.stage import DONE, TOO_MANY_FAILURES, Gate, Invocation, Outcome
from storage.atomic import atomic_write_json, atomic_write_text
from storage.ledger import Ledger
from storage.parts import write_part
from storage.schemas import rows_to_table, schema_of


def evaluate(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe = call.recipe
    refuse_unusable(call.run)
    policies = policies_of(recipe, call.run)
    data = evaluation_data(recipe, call.limit)
    named = [f"{k} ({one.policy.model}, {one.agent.protocol})" for k, one in policies.items()]
    call.say(
        f"eval: {len(data.questions)} questions of {set_name(recipe)}, policies "
        + ", ".join((*named, *recipe.evaluation.baselines))
    )
    for note, count in data.notes.items():
        if "left out, " in note:
            call.say(f"{note}: {count}")
    for line in overheard(recipe):
        call.say(f"note: {line}")
    if recipe.answer_judge is not None:
        most = len(data.questions) * (len(policies) + len(recipe.evaluation.baselines))
        call.say(f"judge: at most {most} calls of {recipe.answer_judge.model}")
    if call.dry_run:
        return Outcome({"questions": len(data.questions), "dry_run": True})
    refuse_overlap(call.run, policies.values(), data.questions)
    retriever = open_index(recipe, data.passages, call.say)
    run = evaluated_run(call, retriever)
    candidates = list(policy_candidates(recipe, policies, data))
    candidates += baseline_candidates(recipe, call.run, data, retriever, call.say)
    deciding = {one.name: one.deciding for one in candidates}
    settings = deciding_settings(recipe, call.limit, deciding, data, retriever)
    name = name_apart(recipe, settings)
    judging = AnswerJudging.of(recipe)
    about = settings if judging is None else {**settings, "judge": judging.deciding}
    with run.open_ledger() as ledger:
        atomic_write_json(run.folder / "eval" / f"{name}.json", about)
        gate = Gate(recipe.limits, ledger.totals)
        stored = {one.name: stored_answers(run, one, name) for one in candidates if judging}
        done = {policy: answered for policy, answered in stored.items() if answered}
        evaluation = PolicyEvaluation(call, retriever, ledger, gate)
        for policy, answered in evaluation.answers(c for c in candidates if c.name not in done):
            if answered.owed:
                return _stopped(call, gate, ledger, list(done))
            _write(run, policy, name, answered)
            done[policy] = answered
        done = {one.name: done[one.name] for one in candidates}
        if judging is not None:
            judged = judging.judge(call, ledger, gate, done, data.questions)
            if judged is None:
                return _stopped(call, gate, ledger, list(done))
            for policy, answered in judged.items():
                _write(run, policy, name, answered)
            done = judged
        totals = {**_report(call, run, name, done), **_spent(call, ledger)}
    return Outcome(totals, _exit_code(call, done))


def _stopped(call: Invocation, gate: Gate, ledger: Ledger, policies: list[str]) -> Outcome:
    """Say what stopped the stage; what the policies in `policies` answered is kept."""
    call.say(f"stopped: {gate.reason}; run the same command again to continue")
    return Outcome({"policies": policies, **_spent(call, ledger)}, gate.exit_code)


def _spent(call: Invocation, ledger: Ledger) -> dict[str, Any]:
    """Say what the run has spent so far, of all its stages; the same as totals."""
    for line in in_words(ledger, call.recipe.limits):
        call.say(line)
    return spending(ledger.totals())


def evaluated_run(call: Invocation, retriever: Retriever) -> Run:
    """The run folder, made if it is not there; an evaluation may ask other questions of it."""
    begun = run_with(call.run, call.recipe)
    return begun or open_run(call.run, call.recipe, {"index_digest": retriever.digest})


def _write(run: Run, policy: str, name: str, answered: Evaluated) -> None:
    """Predictions and failures as parts of the run; none left over from an earlier attempt."""
    predictions = [row.model_copy(update={"evaluation": name}) for row in answered.predictions]
    parts = []
    for kind, rows in (("predictions", predictions), ("failures", answered.failures)):
        table = f"eval/{policy}/{name}/{kind}"
        content = rows_to_table(rows, schema_of(table), run.id)
        parts.append(write_part(run.folder, table, content))
    run.commit(parts)


def _report(call: Invocation, run: Run, name: str, done: dict[str, Evaluated]) -> dict[str, Any]:
    """Print the table, and keep it in the run folder; the stage's totals."""
    comparison = compare(
        {policy: answered.predictions for policy, answered in done.items()},
        {policy: answered.unanswered for policy, answered in done.items()},
        references=call.recipe.evaluation.baselines,
        resamples=run.recipe.evaluation.bootstrap,
        seed=run.recipe.seed,
    )
    call.console.print(render_table(comparison))
    rows = [asdict(row) for row in comparison.rows if row.stratum == EVERYTHING]
    for row in rows:
        folder = run.folder / "eval" / row["policy"] / name
        atomic_write_json(folder / "metrics.json", row)
    atomic_write_text(run.folder / "eval" / f"{name}.md", render_markdown(comparison))
    call.say(f"kept in {run.folder / 'eval'} as {name}")
    return {"set": name, "policies": rows}


def _exit_code(call: Invocation, done: dict[str, Evaluated]) -> int:
    """Tell what failed, by kind; too much of it, under any policy, is exit code 4."""
    share = call.recipe.limits.max_failed_share
    code = DONE
    for policy, answered in done.items():
        failed, asked = len(answered.failures), len(answered.failures) + len(answered.predictions)
        if not failed:
            continue
        kinds = Counter(failure.kind for failure in answered.failures)
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        call.say(f"{policy}: {failed} of {asked} questions failed and count as wrong: {told}")
        if failed > share * asked:
            call.say(f"{policy}: that is more than limits.max_failed_share; see `make inspect`")
            code = TOO_MANY_FAILURES
    judged = [row for one in done.values() for row in one.predictions if row.em is not None]
    unread = sum(row.judge is None for row in judged) if call.recipe.evaluation.judge else 0
    if unread > share * len(judged):
        call.say(f"judge: {unread} of {len(judged)} answers have no verdict")
        code = TOO_MANY_FAILURES
    return code
