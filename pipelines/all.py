"""`make all`: annotate, train-dpo, eval, one after the other; ends where a stage ends early."""

from pipelines.annotate import annotate
from pipelines.evaluate import evaluate
from pipelines.stage import DONE, Invocation, Outcome
from pipelines.train_dpo import train_dpo


def all_stages(call: Invocation) -> Outcome:
    """Run the three stages."""
    totals = {}
    for name, stage in (("annotate", annotate), ("train-dpo", train_dpo), ("eval", evaluate)):
        # `--limit` is about the questions that are annotated; the evaluation has its own.
        outcome = stage(call if name == "annotate" else _unlimited(call))
        totals[name] = outcome.totals
        if outcome.exit_code != DONE:
            return Outcome(totals, outcome.exit_code)
    return Outcome(totals)


def _unlimited(call: Invocation) -> Invocation:
    return Invocation(
        recipe=call.recipe,
        run=call.run,
        resume=call.resume,
        dry_run=call.dry_run,
        console=call.console,
        options=call.options,
    )
