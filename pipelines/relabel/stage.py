"""`make relabel`: recomputes labels and pairs of a run under other reward settings; no model calls.

    branchwise relabel --run datasets/atlas --set rewards.estimator=tree --set pairs.min_outcomes=1

Trees keep the facts (judge scores, rollouts, answers), so a label is arithmetic. Writes
`relabelled/<label>/labels` and `relabelled/<label>/pairs`, one part per part of the trees, and
their settings. The label defaults to the digest of those settings; `--label` names it.
"""

from collections import Counter
from itertools import groupby

from branchwise.analysis import Fresh
from branchwise.base import ConfigError
from branchwise.runs import (
    Label,
    Recipe,
    Relabeller,
    Run,
    StageContext,
    StageResult,
    checked_name,
    existing_run,
    keep_labelling,
    label_digest,
    labelling_of,
    labels_table,
    outdated_weights_warning,
    pairs_table,
    stored_fresh,
    stored_trees,
    with_label_settings,
)
from branchwise.storage import PartInfo, load_manifest
from branchwise.types import Record


def relabel(context: StageContext, label: Label = None) -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    with run.held():
        recipe = with_label_settings(run, context.recipe)
        label = checked_name(label or label_digest(recipe, None))
        _check_not_another(run, label, recipe)
        relabeller = Relabeller(
            recipe, required_fresh_rollouts(run, recipe) if recipe.pairs.confirmed else {}
        )
        if warning := outdated_weights_warning(recipe):
            context.log(warning)
        labels, pairs = labels_table(label), pairs_table(label)
        parts: list[PartInfo] = []
        counted: Counter[str] = Counter()
        for number, trees in groupby(stored_trees(run), key=lambda tree: tree.part):
            nodes_and_pairs = zip(*map(relabeller.label, trees), strict=True)
            for table, by_tree in zip((labels, pairs), nodes_and_pairs, strict=True):
                rows: list[Record] = [row for tree_rows in by_tree for row in tree_rows]
                counted[table] += len(rows)
                if not context.dry_run:
                    parts.append(run.write_part(table, rows, number))
        if not context.dry_run:
            keep_labelling(run, label, recipe)
            run.commit(parts, replaced=(labels, pairs))
    verb = "would relabel" if context.dry_run else "relabelled"
    context.log(f"{verb} {counted[labels]} nodes as `{label}`: {counted[pairs]} pairs")
    dropped = dict(relabeller.dropped)
    context.log(f"pairs dropped: {dropped}")
    return StageResult({"label": label, "pairs": counted[pairs], "dropped": dropped})


def _check_not_another(run: Run, label: str, recipe: Recipe) -> None:
    """Checks that no relabelling with other settings has this name.

    Raises:
        ConfigError: If one has.
    """
    if not load_manifest(run.folder).of(labels_table(label)):
        return
    if label_digest(labelling_of(run, label), None) != label_digest(recipe, None):
        raise ConfigError(
            f"{run.folder}: the relabelling `{label}` has other settings, and would be lost. "
            "Choose another --label"
        )


def required_fresh_rollouts(run: Run, recipe: Recipe) -> Fresh:
    """Returns the fresh rollouts that `pairs.confirmed` needs.

    Raises:
        ConfigError: If the run lacks fresh rollouts, or they do not apply to these labels.
    """
    if not recipe.scheme.by_answer:
        raise ConfigError(
            f"pairs.confirmed: the reward scheme `{recipe.rewards.scheme}` rewards more than right "
            "answers, but fresh rollouts only measure answers. Leave it out"
        )
    if fresh := stored_fresh(run):
        return fresh
    raise ConfigError(
        f"{run.folder}: pairs.confirmed needs fresh rollouts. Draw them for N pairs with "
        "`branchwise diagnose --sample N`"
    )
