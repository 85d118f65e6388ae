"""`make train-sft`: supervised training on steps of the search (ReasonRAG table 3, SFT).

    branchwise train-sft --run datasets/atlas

Trains on the chosen side of every pair, or (`training.sft.examples: right`) on the steps of right
trajectories. Writes `models/<run>/sft/`, or a sibling folder with `--name`.
"""

from branchwise.agent import protocol_of
from branchwise.base import ConfigError
from branchwise.runs import (
    Label,
    ModelName,
    Run,
    StageContext,
    StageResult,
    existing_run,
    pairs_of,
    pairs_table,
    stored_trees,
    trained_folder,
    training_data_provenance,
    training_estimate,
    training_run,
    validated_start_policy,
)
from branchwise.training import StepExample, chosen_steps, right_trajectories, train_on_steps


def train_sft(context: StageContext, label: Label = None, name: ModelName = "sft") -> StageResult:
    """Runs the stage (see module)."""
    settings = context.recipe.training.sft
    run, chosen = existing_run(context.run), settings.examples == "chosen"
    if label is not None and not chosen:
        raise ConfigError("--label is for training.sft.examples: chosen; leave it out")
    table = pairs_table(label) if chosen else "trees"
    examples = chosen_steps(pairs_of(run, table)) if chosen else right_steps(run)
    start = validated_start_policy(context, run, table)
    target = trained_folder(context, "sft", name)
    context.log(f"train-sft: {len(examples)} {settings.examples} steps, start {start} → {target}")
    if context.dry_run:
        return StageResult({**training_estimate(context, "sft", len(examples)), "dry_run": True})
    training = training_run(context, "sft", start, target, training_data_provenance(run, table))
    report = train_on_steps(training, examples, stops=protocol_of(run.recipe.agent).stops)
    context.log(f"wrote {target}: {report.summary()}")
    return StageResult({"model": str(target), **report.totals()})


def right_steps(run: Run) -> list[StepExample]:
    """Returns steps of right trajectories of all trees of a run.

    Raises:
        ConfigError: If no trajectory of the run is right, or its corpus or prompts have changed.
    """
    prompt = protocol_of(run.recipe.agent).prompt
    steps = {
        tree.id: right_trajectories(tree.nodes, tree.states, prompt) for tree in stored_trees(run)
    }
    if not any(steps.values()):
        raise ConfigError(f"{run.folder}: no trajectory is right; annotate more questions")
    return [step for tree_id in sorted(steps) for step in steps[tree_id]]
