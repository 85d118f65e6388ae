"""`make train-dpo`: preference training on a run's pairs, from the policy that drew them.

    branchwise train-dpo --run datasets/atlas

Reads the pairs parquet as it is; the start is merged in float32 with a new LoRA on top, so that
the reference (adapter off) is the policy the run began with. Says first how long the examples
are, and refuses to train if too many would not fit. Writes `models/<run>/dpo/`.
"""

from pathlib import Path

from pipelines.assemble import model_folder
from pipelines.run import existing_run
from pipelines.stage import Invocation, Outcome, checked_name
from storage.errors import ConfigError
from storage.parts import read_parts
from storage.records import Pair
from storage.schemas import table_to_records
from training.dpo import train_dpo as train


def train_dpo(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe = call.recipe
    pairs = pairs_of(call.run, call.options.get("label"))
    target = model_folder(call.run, "dpo")
    call.say(f"train-dpo: {len(pairs)} pairs, start {recipe.policy.trainable} → {target}")
    if call.dry_run:
        return Outcome({"pairs": len(pairs), "dry_run": True})
    report = train(
        pairs,
        recipe.training.dpo,
        start=recipe.policy.trainable,
        target=target,
        seed=recipe.seed,
        resume=call.resume,
        say=call.say,
    )
    call.say(f"wrote {target}: {report.summary()}")
    return Outcome({"model": str(target), "pairs": len(pairs), **report.totals()})


def pairs_of(run: Path, label: str | None = None) -> list[Pair]:
    """The pairs of a run, or of one of its relabellings.

    Raises:
        ConfigError: there is no run, or no pair in it.
    """
    existing_run(run)
    table = f"relabelled/{checked_name(label)}/pairs" if label else "pairs"
    pairs = table_to_records(read_parts(run, table), Pair)
    if not pairs:
        raise ConfigError(
            f"{run}: no {table} to train on; annotate more questions, or relabel with a smaller "
            "pairs.min_outcomes"
        )
    return pairs
