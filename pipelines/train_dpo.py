"""`make train-dpo`: preference training on a run's pairs, from the policy that drew them.

    branchwise train-dpo --run datasets/atlas

Reads the pairs parquet as it is; the start is merged in float32 with a new LoRA on top, so that
the reference (adapter off) is the policy the run began with. Says first how long the examples
are, and refuses to train if too many would not fit. Writes `models/<run>/dpo/`, or another folder
beside it with `--name`.
"""

from agent.protocols import protocol_of
from runs.folder import existing_run
from runs.stage import Invocation, Outcome
from runs.stored_pairs import pairs_of, pairs_table
from runs.training_start import checked_start, rows_trained_on, trained_folder
from training.dpo import train_dpo as train


def train_dpo(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe, run = call.recipe, existing_run(call.run)
    table = pairs_table(call.options.get("label"))
    pairs = pairs_of(run, table)
    start = checked_start(call, run, table, off_policy=recipe.training.dpo.off_policy)
    target = trained_folder(call, "dpo")
    call.say(f"train-dpo: {len(pairs)} pairs, start {start} → {target}")
    if call.dry_run:
        return Outcome({"pairs": len(pairs), "dry_run": True})
    report = train(
        pairs,
        recipe.training.dpo,
        start=start,
        target=target,
        seed=recipe.seed,
        stops=protocol_of(run.recipe.agent).stops,
        resume=call.resume,
        data=rows_trained_on(run, table),
        say=call.say,
    )
    call.say(f"wrote {target}: {report.summary()}")
    return Outcome({"model": str(target), "pairs": len(pairs), **report.totals()})
