"""`make all`: annotate, train-dpo, eval, one after the other; ends where a stage ends early."""

from dataclasses import replace

from pipelines.annotate import annotate
from pipelines.evaluate import evaluate
from pipelines.train_dpo import train_dpo
from runs.assemble import model_folder
from runs.stage import DONE, Invocation, Outcome


def all_stages(call: Invocation) -> Outcome:
    """Run the three stages."""
    if call.dry_run:
        return _announce(call)
    totals = {}
    for name, stage in (("annotate", annotate), ("train-dpo", train_dpo), ("eval", evaluate)):
        # `--limit` is about the questions that are annotated; the evaluation has its own.
        outcome = stage(call if name == "annotate" else replace(call, limit=None))
        totals[name] = outcome.totals
        if outcome.exit_code != DONE:
            return Outcome(totals, outcome.exit_code)
    return Outcome(totals)


def _announce(call: Invocation) -> Outcome:
    """Say what would happen; the later stages need what the earlier ones would have written."""
    annotated = annotate(call)
    policies = ", ".join(call.recipe.evaluation.policies or ("policy",))
    call.say(f"then train-dpo: on the pairs of the run → {model_folder(call.run, 'dpo')}")
    call.say(f"then eval: policies {policies}")
    return Outcome({"annotate": annotated.totals, "dry_run": True}, annotated.exit_code)
