"""`make train-grpo`: reinforcement learning on the rewards of whole rollouts.

    branchwise train-grpo --config configs/eval-rar.yaml

The policy answers each question several times under its protocol, the reward scheme scores the
rollouts, and the policy is updated towards the better ones. The updated policy samples the next
batch. With `training.grpo.rollouts: trees` it trains on the trees of `annotate` instead, comparing
each step with its siblings.

Writes `models/<run>/grpo/` (or a sibling folder with `--name`), and one more folder for each of
`training.grpo.stages` except the last, with `metrics.jsonl`, which `make report` plots. Rollouts
are calls in the run's ledger, so an interrupted training can resume.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from branchwise.agent import protocol_of
from branchwise.base import BudgetExceeded, ConfigError, terminal_safe
from branchwise.engines import Sampling, check_vllm
from branchwise.runs import (
    NOTHING,
    TRAINING_CALLS,
    CostEstimate,
    CostRange,
    Gate,
    Label,
    ModelName,
    Prepared,
    StageContext,
    StageResult,
    add,
    answer_settings,
    check_relabelling_current,
    estimate_from_run,
    existing_run,
    labels_table,
    log_costs,
    log_notes,
    open_run,
    prepare,
    questions_digest,
    require,
    retrieval_identity,
    rollout_cost,
    search_server,
    spending,
    trained_folder,
    training_data_provenance,
    training_run,
    validated_start_policy,
)
from branchwise.sources import Data
from branchwise.storage import TRAINED, Ledger
from branchwise.training import (
    Canary,
    OutcomeRlSettings,
    RolloutSource,
    TrainingReport,
    check_has_lora,
    tolerance_for,
)
from branchwise.training import train_grpo as train
from branchwise.types import Question
from branchwise.weights import file_hash, policy_files, tokenizer_of

from .generated_rollouts import Rollouts
from .planned_trainings import (
    GrpoTraining,
    canary_prompts,
    dev_questions,
    grpo_trainings,
    rollout_recipe,
)
from .policy_serving import serving_for
from .tree_groups import TreeGroups, tree_groups


def train_grpo(context: StageContext, label: Label = None, name: ModelName = "grpo") -> StageResult:
    """Runs the stage (see module)."""
    check_has_lora(context.recipe.training)
    if context.recipe.training.grpo.rollouts == "trees":
        return _on_trees(context, label, name)
    if label is not None:
        raise ConfigError("--label is for training.grpo.rollouts: trees; leave it out")
    return _on_rollouts(context, name)


def _on_rollouts(context: StageContext, name: str) -> StageResult:
    recipe = rollout_recipe(context)
    prepared = prepare(context, {"policy": recipe.policy}, recipe=recipe)
    data = prepared.data
    target = trained_folder(context, "grpo", name)
    trainings = list(grpo_trainings(context, recipe, data.questions, target))
    dev = dev_questions(recipe, data.questions) if recipe.training.grpo.eval_every else ()
    _announce(context, trainings, dev)
    log_notes(context, prepared.models, data)
    if context.dry_run:
        estimate = _estimate(context, trainings, dev, data)
        return estimate.report(context, questions=len(data.questions))
    if recipe.policy.engine == "vllm" and not recipe.policy.addresses:
        check_vllm(recipe.policy)  # a dry run does without
    require(search_server(recipe.retrieval))
    index_digest = prepared.retriever.digest
    sampled = {
        "retrieval": retrieval_identity(recipe.retrieval),
        **answer_settings(recipe.usual_policy, recipe),
        "temperature": recipe.policy.temperature,
    }
    run = open_run(context.run, context.recipe, {"index_digest": index_digest}, keeps_record=True)
    with run.open_ledger() as ledger:
        gate = prepared.gate(ledger)
        adapter: Path | None = None
        try:
            with gate.listening():
                for training in trainings:
                    # Stored, so that no evaluation of the trained policy asks them.
                    table = f"{TRAINED}/{training.target.name}/questions"
                    run.commit([run.write_part(table, training.questions)])
                    with _rollouts(prepared, training, dev, ledger, gate) as source:
                        report = _train(
                            context,
                            training,
                            source,
                            temperature=recipe.policy.temperature,
                            deciding=(index_digest, json.dumps(sampled)),
                            begin_with=adapter,
                            data={
                                "run": run.folder.name,
                                "run_id": run.id,
                                "questions": len(training.questions),
                                "digest": questions_digest(training.questions),
                            },
                        )
                    adapter = training.target / "adapter"
        except BudgetExceeded:
            return gate.stopped(spending(ledger.totals()))
        totals = log_costs(context, ledger)
    return StageResult({"model": str(target), **report.totals(), **totals})


def _on_trees(context: StageContext, label: str | None, name: str) -> StageResult:
    recipe, run = context.recipe, existing_run(context.run)
    settings, run_recipe = recipe.training.grpo, run.recipe
    if settings.ratio == "engine":
        raise ConfigError(
            "training.grpo.ratio: trees store no log-probabilities of the engine. Set ratio: "
            "trainer"
        )
    if settings.stages or settings.eval_every:
        raise ConfigError(
            "training.grpo.rollouts: trees is one training without evaluations. Set stages: [] and "
            "eval_every: 0"
        )
    table = labels_table(label)
    check_relabelling_current(run, table)
    start = validated_start_policy(context, run, table)
    target = trained_folder(context, "grpo", name)
    trees = tree_groups(run, table, tokenizer_of(policy_files(start).base))
    groups = sum(len(siblings) for _, siblings in trees)
    context.log(
        f"train-grpo: {groups} groups of siblings with spread in {len(trees)} trees, start {start} "
        f"→ {target}"
    )
    if context.dry_run:
        nothing = CostEstimate("rollout", NOTHING, CostRange(), "trees need no calls")
        return nothing.report(context, groups=groups)
    source = TreeGroups([siblings for _, siblings in trees], settings.batch_questions, recipe.seed)
    data = training_data_provenance(run, table)
    report = _train(
        context,
        GrpoTraining(recipe, target, [question for question, _ in trees]),
        source,
        temperature=Sampling.of(run_recipe.policy, run_recipe.mcts.temperature).temperature,
        deciding=(run.id, table, data["digest"]),
        data=data,
    )
    return StageResult({"model": str(target), "groups": groups, **report.totals()})


def _train(
    context: StageContext,
    training: GrpoTraining,
    source: RolloutSource,
    *,
    temperature: float,
    deciding: Sequence[str],
    data: dict[str, Any],
    begin_with: Path | None = None,
) -> TrainingReport:
    """Trains, and draws the curves.

    Args:
        temperature: Sampling temperature of the rollouts or tree nodes.
        begin_with: Adapter of the stage that this one continues from.
    """
    recipe = training.recipe
    rewards = json.dumps(recipe.rewards.model_dump(mode="json"), sort_keys=True)
    deciding = (questions_digest(training.questions), rewards, *deciding)
    if begin_with is not None:
        deciding = (*deciding, file_hash(begin_with / "adapter_model.safetensors"))
    context = replace(context, recipe=recipe)
    report = train(
        training_run(context, "grpo", recipe.policy.trainable, training.target, data),
        source,
        temperature=temperature,
        deciding=deciding,
        begin_with=begin_with,
    )
    context.log(f"wrote {training.target}: {report.summary()}")
    return report


def _rollouts(
    prepared: Prepared,
    training: GrpoTraining,
    dev: Sequence[Question],
    ledger: Ledger,
    gate: Gate,
) -> Rollouts:
    recipe, logs = training.recipe, ledger.path.parent / "logs"
    log = prepared.context.log
    return Rollouts(
        prepared,
        recipe,
        training.questions,
        dev,
        ledger,
        gate,
        serving_for(recipe, training.target / "serving", logs, gate.check, log),
        Canary(canary_prompts(recipe, training.questions), tolerance_for(recipe.policy)),
    )


def _rollout_counts(settings: OutcomeRlSettings, dev: Sequence[Question]) -> tuple[int, int, int]:
    """Returns the dev answers of a training, and the fewest and most rollouts with them."""
    evaluations = range(0, settings.batches, settings.eval_every) if settings.eval_every else ()
    answers, rollouts = len(dev) * len(evaluations), settings.batches * settings.group_size
    fewest, most = settings.batch_questions, settings.batch_questions + settings.dynamic_sampling
    return answers, rollouts * fewest + answers, rollouts * most + answers


def _announce(
    context: StageContext, trainings: Sequence[GrpoTraining], dev: Sequence[Question]
) -> None:
    for training in trainings:
        recipe, settings = training.recipe, training.recipe.training.grpo
        protocol = protocol_of(recipe.agent)
        answers, _, most = _rollout_counts(settings, dev)
        also = f", {answers:,} dev answers" if answers else ""
        context.log(
            f"train-grpo: {settings.algorithm} on {recipe.rewards.scheme} rewards, protocol "
            f"{protocol.name}, {len(training.questions):,} questions, start "
            f"{terminal_safe(recipe.policy.trainable)} → {training.target}"
        )
        context.log(
            f"cost: {settings.batches} batches of {settings.batch_questions} questions, "
            f"{settings.group_size} rollouts each{also}; at most {most:,} rollouts and "
            f"{most * protocol.max_calls:,} calls; those in the ledger are free"
        )


def _estimate(
    context: StageContext, trainings: Sequence[GrpoTraining], dev: Sequence[Question], data: Data
) -> CostEstimate:
    recipe, units, bounds = context.recipe, NOTHING, CostRange()
    for training in trainings:
        _, fewest, most = _rollout_counts(training.recipe.training.grpo, dev)
        units = add(units, (fewest, most))
        bounds += rollout_cost(
            training.recipe.usual_policy, data, recipe.retrieval.top_k, tokens=True
        ).times((fewest, most))
    priced = {"policy": recipe.policy}
    return estimate_from_run(context, TRAINING_CALLS, None, "rollout", units, bounds, priced)
