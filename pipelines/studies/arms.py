"""The arms of a study of learning: what is trained on which pairs, and how each is examined.

All arms share one set of trees (their pairs are relabelled, never regrown), one start, one test,
one engine and one precision; they differ in what they learn from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evaluation.comparison import Scored
from evaluation.scoring import Unanswered, score_failure
from pipelines.assemble import model_folder
from pipelines.evaluation_set import evaluation_data
from pipelines.studies.lab import Lab, Totals
from storage.parts import question_ids, read_parts
from storage.records import Prediction
from storage.schemas import table_to_records

Trainer = Literal["train-dpo", "train-sft"]
BLOCKS: dict[Trainer, str] = {"train-dpo": "training.dpo", "train-sft": "training.sft"}
START = "warm-start"
"""The arm that everything starts from."""


@dataclass(frozen=True)
class Arm:
    """One way of learning.

    Attributes:
        name: of the arm; its policies are `<name>-<seed>`.
        trainer: null for the start itself.
        pairs: settings of the relabelling that it learns from.
        training: settings of its trainer's block.
        draw: of its evaluation; another one asks the same weights anew.
        label: name of the relabelling, where arms share one; null takes the arm's name.
        models: what its model folders are called, where arms share them; null takes its name.
    """

    name: str
    trainer: Trainer | None = None
    pairs: Mapping[str, object] = field(default_factory=dict)
    training: Mapping[str, object] = field(default_factory=dict)
    draw: int = 0
    label: str | None = None
    models: str | None = None


@dataclass
class Examined:
    """An arm on a question set, as far as the study has come.

    Attributes:
        predictions: by seed; a single one where nothing is trained. Questions that failed are
            among them, `Unanswered`.
        trainings, evaluations: totals of each, in the order of the seeds.
    """

    arm: Arm
    predictions: dict[int, list[Scored]] = field(default_factory=dict)
    trainings: list[Totals] = field(default_factory=list)
    evaluations: list[Totals] = field(default_factory=list)


def trained(lab: Lab, arm: Arm, seed: int) -> tuple[str, Totals]:
    """Train an arm on its pairs; the model folder and the training's totals."""
    if arm.trainer is None:
        return lab.recipe.policy.trainable, {}
    label = arm.label or arm.name
    labelled = lab.branchwise("relabel", "--label", label, settings=arm.pairs)
    name, block = f"{arm.models or arm.name}-{seed}", BLOCKS[arm.trainer]
    totals = lab.branchwise(
        arm.trainer,
        *("--label", label, "--name", name),
        settings={"seed": seed, **{f"{block}.{k}": v for k, v in arm.training.items()}},
        after=labelled,
    )
    return str(model_folder(lab.call.run, name)), totals


def examined(
    lab: Lab, arms: Sequence[Arm], asked: Mapping[str, object]
) -> Iterator[list[Examined]]:
    """Train every arm and ask all policies the same questions, one seed after the other.

    Args:
        asked: settings of every evaluation: its part, its limit, the engine's precision.

    Yields:
        All arms after each seed, so that tables grow with the study.
    """
    found = [Examined(arm) for arm in arms]
    for seed in lab.seeds:
        for one in found:
            if one.arm.trainer or not one.predictions:
                _examine(lab, one, seed, asked)
        yield found


def _examine(lab: Lab, done: Examined, seed: int, asked: Mapping[str, object]) -> None:
    folder, totals = trained(lab, done.arm, seed)
    policy = f"{done.arm.name}-{seed}" if done.arm.trainer else done.arm.name
    named = {"evaluation.policies": {policy: folder}, "evaluation.draw": done.arm.draw}
    settings = {**asked, **named}
    evaluated = lab.branchwise("eval", settings=settings, after=totals)
    done.predictions[seed] = predictions_of(lab, policy, evaluated, settings)
    done.trainings.append(totals)
    done.evaluations.append(evaluated)


def predictions_of(
    lab: Lab, policy: str, evaluated: Totals, settings: Mapping[str, object]
) -> list[Scored]:
    """What a policy answered and what it failed on; nothing in a dry run.

    Args:
        policy: its name.
        evaluated: totals of the evaluation.
        settings: of the evaluation, besides the study's recipe.
    """
    if not evaluated:
        return []
    run, folder = lab.call.run, f"eval/{policy}/{evaluated['set']}"
    answered = table_to_records(read_parts(run, f"{folder}/predictions"), Prediction)
    failed = question_ids(run, f"{folder}/failures")
    return [*answered, *(_unanswered(lab, failed, answered, settings) if failed else ())]


def _unanswered(
    lab: Lab, failed: set[str], answered: Sequence[Prediction], settings: Mapping[str, object]
) -> Iterator[Unanswered]:
    """Failures have an id alone: what was asked says whether there was an answer to be found."""
    known = {(row.source, row.question_id) for row in answered}
    recipe = lab.recipe_with(settings)
    for question in evaluation_data(recipe).questions:
        if question.id in failed and (question.source, question.id) not in known:
            yield score_failure(question, seed=recipe.seed)


def mean_of(totals: Iterable[Mapping[str, Any]], *path: str) -> float | None:
    """Mean of a number that some of the totals have, such as `last`, `kl`."""
    found = []
    for one in totals:
        value: Any = one
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            found.append(float(value))
    return sum(found) / len(found) if found else None
