"""`make train-rm`: a reward model on a run's siblings (EVO-RAG section 3.3).

    branchwise train-rm --run datasets/evo-rag

Labels the stored trees under the recipe's `rewards:` (trying another schedule takes one `--set`,
not new trees) and compares all siblings that differ in action or query and are far enough apart. A
frozen encoder reads each step once; linear heads learn to order them. Prints the accuracy of each
head on held-out questions, with that of a length-only baseline. Writes
`models/<run>/reward-model/`, or a sibling folder with `--name`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from branchwise.agent import protocol_of
from branchwise.annotation import PairSettings, sibling_pairs
from branchwise.base import NONE, ConfigError, Sheet, number
from branchwise.modeling import FrozenEncoder, Prefix
from branchwise.rewards import KIND, naming, prefix_of
from branchwise.runs import (
    BAD_INPUT,
    NOT_TRAINED,
    ModelName,
    Recipe,
    Run,
    StageContext,
    StageResult,
    encoder_of,
    existing_run,
    stored_trees,
    trained_folder,
    training_data_provenance,
    with_label_settings,
)
from branchwise.training import (
    HeadMetrics,
    NothingToLearn,
    RewardModelSettings,
    RewardTrainingData,
    SiblingComparison,
    head_names,
    orders,
    return_gaps,
    train_reward_model,
)


def train_rm(context: StageContext, name: ModelName = KIND) -> StageResult:
    """Runs the stage (see module)."""
    settings, run = context.recipe.training.reward_model, existing_run(context.run)
    material, dropped = build_comparisons(run, labels_of(context, run), settings)
    target, encoder = trained_folder(context, KIND, name), encoder_of(context.recipe)
    pairs, ordered = len(material.comparisons), orders(material.comparisons, settings) != 0
    heads = dict(zip(head_names(settings), ordered.sum(axis=0).tolist(), strict=True))
    context.log(
        f"train-rm: {pairs} pairs of {len(material.steps)} steps, encoder {encoder} → {target}"
    )
    context.log(f"train-rm: pairs that a head learns from or is measured on: {_listed(heads)}")
    context.log(f"train-rm: pairs dropped: {_listed(dropped)}")
    if context.dry_run:
        return StageResult({"pairs": pairs, "heads": heads, "dry_run": True})
    try:
        report = train_reward_model(
            material,
            settings,
            max_dropped_share=context.recipe.training.max_dropped_share,
            encoder=FrozenEncoder(encoder, batch_tokens=settings.batch_tokens, log=context.log),
            target=target,
            seed=context.recipe.seed,
            log=context.log,
            data=training_data_provenance(run, "trees"),
        )
    except NothingToLearn as nothing:
        context.log(f"train-rm: {nothing}")
        return StageResult({NOT_TRAINED: str(nothing)}, BAD_INPUT, str(nothing))
    metrics, loss = report.metrics, report.metrics.loss
    head = ("head", "trained on", "pairs", "loss", "accuracy", "length only")
    rows = tuple(map(_cells, (*metrics.heads, metrics.score)))
    context.console.print(Sheet("Reward model on validation questions", head, rows).text())
    validation = "no validation pairs" if loss is None else f"validation loss {loss:.3f}"
    context.log(
        f"wrote {target}: {report.trained} pairs of {report.questions} questions, "
        f"{report.validation} of {report.validation_questions} kept for validation, {validation}"
    )
    return StageResult({"model": str(target), **report.as_json()})


def labels_of(context: StageContext, run: Run) -> Recipe:
    """Returns the run's recipe with the rewards that are to label its trees.

    Raises:
        ConfigError: If the recipe's rewards score whole trajectories only.
    """
    if not context.recipe.scheme.learnable:
        raise ConfigError(
            "train-rm: a reward model cannot learn the reward scheme "
            f"`{context.recipe.rewards.scheme}`; grow the trees with rewards.scheme: "
            f"{naming(lambda scheme: scheme.learnable)}"
        )
    return with_label_settings(run, context.recipe, ("rewards",))


def build_comparisons(
    run: Run, recipe: Recipe, settings: RewardModelSettings
) -> tuple[RewardTrainingData, Counter[str]]:
    """Builds the comparisons of a run's trees under some rewards; counts dropped pairs.

    Args:
        recipe: The run's recipe, with the `rewards:` block to label with.

    Raises:
        ConfigError: If the trees were grown with another corpus or other prompts.
    """
    prompt = protocol_of(recipe.agent).prompt
    scheme, pair_settings = recipe.scheme, PairSettings(min_gap=settings.min_gap)
    places: dict[Prefix, int] = {}
    by_tree: dict[str, list[SiblingComparison]] = {}
    dropped: Counter[str] = Counter()
    for tree in stored_trees(run):
        labels = scheme.labels(tree.question, tree.nodes, tree.states)
        pairs, left_out = sibling_pairs(tree.nodes, labels, pair_settings)
        dropped += left_out
        comparisons = by_tree[tree.id] = []
        for pair in pairs:
            better, worse = (
                places.setdefault(prefix_of(tree.states[node.node_id], prompt), len(places))
                for node in (pair.chosen, pair.rejected)
            )
            gaps = return_gaps(pair.chosen_label, pair.rejected_label)
            t = pair.chosen.depth - 1
            comparisons.append(
                SiblingComparison(tree.question.id, t, better, worse, gaps, pair.gap)
            )
    # In order of tree, so that the division into parts does not affect training.
    ordered = [comparison for tree_id in sorted(by_tree) for comparison in by_tree[tree_id]]
    used = dict.fromkeys(place for c in ordered for place in (c.better, c.worse))
    rank = {place: n for n, place in enumerate(used)}
    ranked = [replace(c, better=rank[c.better], worse=rank[c.worse]) for c in ordered]
    steps = list(places)
    return RewardTrainingData([steps[place] for place in used], ranked, scheme), dropped


def _cells(row: HeadMetrics) -> tuple[str, ...]:
    length = f"{number(row.length_only, 3)} ({row.prefers})"
    return (
        row.name,
        str(row.trained),
        str(row.pairs),
        number(row.loss, 3),
        number(row.accuracy, 3),
        length if row.length_only is not None else NONE,
    )


def _listed(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counted.items()) or "none"
