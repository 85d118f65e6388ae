"""The arms of a learning study: their pairs, trainings and evaluations.

All arms share one set of trees (their pairs are relabelled, never regrown), one start, one test,
one engine and one precision. They differ only in the data that they learn from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from branchwise.analysis import Scored
from branchwise.base import BranchwiseError, ConfigError
from branchwise.evaluation import score_failure
from branchwise.runs import (
    LEDGER,
    TREE_CALLS,
    StageTotals,
    StudyRunner,
    evaluation_data,
    model_folder,
)
from branchwise.storage import Totals, question_ids, read_call_history, read_parts, table_to_records
from branchwise.types import FailedPrediction, Prediction

START = "warm-start"
"""Name of the arm that all others start from."""


@dataclass(frozen=True)
class Arm:
    """One way of learning.

    Attributes:
        trainer: Stage that trains it, such as `train-dpo`; None for the start itself.
        pairs: Settings of its pairs; for `train-grpo`, which has none, of its rewards.
        training: Settings in the trainer's block.
        draw: Sample index of its evaluation; another index gives another sample of the same policy.
        label: Name of a relabelling that arms share; defaults to the arm's name.
        models: Prefix of model folders that arms share; defaults to the arm's name.
        before: Arm that is trained first, with the same seed; None starts from the recipe's policy.
        min_pairs: Minimum number of pairs. With fewer, the arm is left out, and its row reports
            it; 0 stops the study instead.
    """

    name: str
    trainer: str | None = None
    pairs: Mapping[str, object] = field(default_factory=dict)
    training: Mapping[str, object] = field(default_factory=dict)
    draw: int = 0
    label: str | None = None
    models: str | None = None
    before: "Arm | None" = None
    min_pairs: int = 0
    paper: str = ""


def make_start(runner: StudyRunner) -> None:
    """Runs the warm start that all arms start from.

    Raises:
        ConfigError: If the recipe names another policy.
    """
    start_model, policy_model = (
        model_folder(runner.context.run, START),
        runner.recipe.policy.trainable,
    )
    if Path(policy_model) != start_model:
        raise ConfigError(
            f"policy.model is {policy_model}, but the warm start of this study will be "
            f"{start_model}: add --set policy.model={start_model}, or omit --run"
        )
    runner.run_stage("warm-start")


class TooFewPairs(BranchwiseError):
    """An arm has too few pairs to be trained; the study continues with the others."""


@dataclass
class EvaluatedArm:
    """An arm on a question set, with the seeds evaluated so far.

    Attributes:
        predictions: Predictions by seed, failed questions included (`FailedPrediction`); one entry
            if nothing is trained.
        trainings, evaluations: Totals of each, in the order of the seeds. If another arm is trained
            first, pairs, steps and seconds are the sums of both.
    """

    arm: Arm
    predictions: dict[int, list[Scored]] = field(default_factory=dict)
    trainings: list[StageTotals] = field(default_factory=list)
    evaluations: list[StageTotals] = field(default_factory=list)
    left_out: str | None = None


def train_arm(runner: StudyRunner, arm: Arm, seed: int) -> tuple[str, StageTotals]:
    """Trains an arm on its pairs, after the arm before it.

    Returns:
        The model folder and the totals of the training.

    Raises:
        TooFewPairs: If this arm, or the arm before it, has fewer pairs than its minimum.
    """
    if arm.trainer is None:
        return runner.recipe.policy.trainable, {}
    start, before = _begins(runner, arm, seed)
    label = _labelled(runner, arm)
    name, block = f"{arm.models or arm.name}-{seed}", arm.trainer.replace("train-", "training.")
    rewards = arm.pairs if arm.trainer == "train-grpo" else {}
    training = {f"{block}.{key}": value for key, value in arm.training.items()}
    totals = runner.run_stage(
        arm.trainer,
        *label,
        *("--name", name),
        settings={"seed": seed, **start, **rewards, **training},
    )
    return str(model_folder(runner.context.run, name)), _summed(totals, before)


def _labelled(runner: StudyRunner, arm: Arm) -> tuple[str, ...]:
    if arm.trainer == "train-grpo" or arm.training.get("examples") == "right":
        return ()  # neither trains on pairs
    label = arm.label or arm.name
    labelled = runner.run_stage("relabel", "--label", label, settings=arm.pairs)
    if (pairs := labelled.get("pairs", arm.min_pairs)) < arm.min_pairs:
        raise TooFewPairs(f"{label}: only {pairs} of at least {arm.min_pairs} pairs")
    return "--label", label


def _summed(last: StageTotals, before: Sequence[StageTotals]) -> StageTotals:
    """Returns the totals of the last training, with the cost of all of them."""
    cost = ("examples", "steps", "seconds")
    return {
        **last,
        **{key: sum(training[key] for training in (last, *before)) for key in cost if key in last},
    }


def _begins(
    runner: StudyRunner, arm: Arm, seed: int
) -> tuple[dict[str, object], tuple[StageTotals, ...]]:
    """Returns the settings that name an arm's start, and the totals of the training that gave it.

    Both are empty if the arm starts from the recipe's policy.
    """
    if arm.before is None:
        return {}, ()
    folder, totals = train_arm(runner, arm.before, seed)
    return {"policy.model": folder, "policy.weights": None}, (totals,)


def evaluate_arms(
    runner: StudyRunner, arms: Sequence[Arm], settings: Mapping[str, object]
) -> Iterator[list[EvaluatedArm]]:
    """Trains every arm and evaluates all policies on the same questions, one seed after the other.

    Args:
        settings: Settings of every evaluation, such as its split, its limit and the precision.

    Yields:
        All arms after each seed, so that tables grow with the study.
    """
    results = [EvaluatedArm(arm) for arm in arms]
    for seed in runner.seeds:
        for result in results:
            if result.arm.trainer or not result.predictions:
                run_arm(runner, result, seed, settings)
        yield results


def run_arm(
    runner: StudyRunner, result: EvaluatedArm, seed: int, settings: Mapping[str, object]
) -> None:
    """Trains an arm with one seed and evaluates its policy; the results join those of `result`."""
    try:
        folder, totals = train_arm(runner, result.arm, seed)
    except TooFewPairs as few:
        runner.context.log(f"{runner.title}: {result.arm.name} is left out: {few}")
        result.left_out = str(few)
        return
    policy = f"{result.arm.name}-{seed}" if result.arm.trainer else result.arm.name
    policy_settings = {"evaluation.policies": {policy: folder}, "evaluation.draw": result.arm.draw}
    all_settings = {**settings, **policy_settings}
    evaluated = runner.run_stage("eval", settings=all_settings)
    result.predictions[seed] = predictions_of(runner, policy, evaluated, all_settings)
    result.trainings.append(totals)
    result.evaluations.append(evaluated)


def predictions_of(
    runner: StudyRunner, policy: str, evaluated: StageTotals, settings: Mapping[str, object]
) -> list[Scored]:
    """Returns a policy's predictions and failures; none in a dry run.

    Args:
        settings: Settings of the evaluation that differ from the study's recipe.
    """
    if not evaluated:
        return []
    run, folder = runner.context.run, f"eval/{policy}/{evaluated['set']}"
    answered = table_to_records(read_parts(run, f"{folder}/predictions"), Prediction)
    failed = question_ids(run, f"{folder}/failures")
    return [*answered, *(_unanswered(runner, failed, answered, settings) if failed else ())]


def _unanswered(
    runner: StudyRunner,
    failed: set[str],
    answered: Sequence[Prediction],
    settings: Mapping[str, object],
) -> Iterator[FailedPrediction]:
    """Yields the failed questions as predictions.

    Failures store only an id, so the questions are read from the evaluation set.
    """
    answered_keys = {(row.source, row.question_id) for row in answered}
    recipe = runner.recipe_with(settings)
    for question in evaluation_data(recipe).questions:
        if question.id in failed and (question.source, question.id) not in answered_keys:
            yield score_failure(question, seed=recipe.seed)


def tree_totals(runner: StudyRunner) -> Totals:
    """Returns the totals of the calls that grew a run's trees, without its evaluations."""
    history = read_call_history(runner.context.run / LEDGER, TREE_CALLS)
    by_role = history.totals if history else ()
    return sum((totals for roles in by_role for totals in roles.values()), Totals())


def mean_of(totals: Iterable[StageTotals], *path: str) -> float | None:
    """Returns the mean of the number at a path, such as `last`, `kl`; None without one."""
    numbers = numbers_of(totals, *path)
    return sum(numbers) / len(numbers) if numbers else None


def numbers_of(totals: Iterable[StageTotals], *path: str) -> list[float]:
    """Returns the number at a path from all totals that have one there."""
    numbers = []
    for stage_totals in totals:
        value: Any = stage_totals
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            numbers.append(float(value))
    return numbers
