"""`make train-dpo`: preference training on a run's pairs, from the policy that drew them.

    branchwise train-dpo --run datasets/atlas

Reads the pairs parquet as it is. The start is merged in float32 with a new LoRA on top, so the
reference (adapter off) is the run's start policy. Logs the lengths of the examples first, and
fails if too many would not fit. Writes `models/<run>/dpo/`, or a sibling folder with `--name`.
"""

from branchwise.agent import protocol_of
from branchwise.runs import (
    Label,
    ModelName,
    StageContext,
    StageResult,
    existing_run,
    pairs_of,
    pairs_table,
    trained_folder,
    training_data_provenance,
    training_estimate,
    training_run,
    validated_start_policy,
)
from branchwise.training import train_dpo as train


def train_dpo(context: StageContext, label: Label = None, name: ModelName = "dpo") -> StageResult:
    """Runs the stage (see module)."""
    recipe, run = context.recipe, existing_run(context.run)
    table = pairs_table(label)
    pairs = pairs_of(run, table)
    start = validated_start_policy(
        context, run, table, allow_off_policy_pairs=recipe.training.dpo.allow_off_policy_pairs
    )
    target = trained_folder(context, "dpo", name)
    context.log(f"train-dpo: {len(pairs)} pairs, start {start} → {target}")
    if context.dry_run:
        estimate = training_estimate(context, "dpo", len(pairs))
        return StageResult({"pairs": len(pairs), **estimate, "dry_run": True})
    training = training_run(context, "dpo", start, target, training_data_provenance(run, table))
    report = train(training, pairs, stops=protocol_of(run.recipe.agent).stops)
    context.log(f"wrote {target}: {report.summary()}")
    return StageResult({"model": str(target), "pairs": len(pairs), **report.totals()})
