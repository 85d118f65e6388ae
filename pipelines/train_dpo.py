"""`make train-dpo`: preference training on a run's pairs, from the policy that drew them.

    branchwise train-dpo --run datasets/atlas

Reads the pairs parquet as it is; the start is merged in float32 with a new LoRA on top, so that
the reference (adapter off) is the policy the run began with. Says first how long the examples
are, and refuses to train if too many would not fit. Writes `models/<run>/dpo/`, or another folder
beside it with `--name`.
"""

from pipelines.run import Run, existing_run
from pipelines.stage import Invocation, Outcome, checked_name
from pipelines.start import checked_start, rows_trained_on, trained_folder
from storage.errors import ConfigError
from storage.manifest import load_manifest
from storage.parts import question_ids, read_parts
from storage.records import Pair
from storage.schemas import table_to_records
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
        resume=call.resume,
        data=rows_trained_on(run, table),
        say=call.say,
    )
    call.say(f"wrote {target}: {report.summary()}")
    return Outcome({"model": str(target), "pairs": len(pairs), **report.totals()})


def pairs_table(label: str | None = None) -> str:
    """Name of the table of a run's pairs, or of those of one of its relabellings."""
    return f"relabelled/{checked_name(label)}/pairs" if label else "pairs"


def pairs_of(run: Run, table: str) -> list[Pair]:
    """The pairs of a run.

    Raises:
        ConfigError: there are none, or they are a relabelling's that lacks questions grown since.
    """
    _refuse_outgrown(run, table)
    pairs = table_to_records(read_parts(run.folder, table), Pair)
    if not pairs:
        raise ConfigError(
            f"{run.folder}: no {table} to train on; annotate more questions, or relabel with a "
            "smaller pairs.min_gap or pairs.min_outcomes (evo_rag.schedule `none` leaves no pair)"
        )
    return pairs


def _refuse_outgrown(run: Run, table: str) -> None:
    folder, _, _ = table.rpartition("/")
    if not folder or not load_manifest(run.folder).of(table):
        return
    since = question_ids(run.folder, "trees") - question_ids(run.folder, f"{folder}/labels")
    if since:
        raise ConfigError(
            f"{run.folder}: {len(since)} questions were grown since {folder} was made; run "
            f"`branchwise relabel --label {folder.rpartition('/')[2]}` again, with its settings"
        )
