"""One cycle of a curriculum: grow trees, train a reward model, train the policy, evaluate on dev.

Source: EVO-RAG sections 3.4 and 3.7 (algorithm 1). Each cycle is an ordinary run folder next to the
curriculum's, `datasets/<run>-<cycle>`, with models in `models/<run>-<cycle>`. So `inspect`,
`diagnose` and `verify` work on it. The recipe is the curriculum's, with the `--set` options of the
stages. Dev results decide when a stage stops ("if HotpotQA dev EM stalls for two cycles") and which
policy Refinement starts from (section 3.5: the best of Discovery).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from branchwise.base import ConfigError

from ..factories import model_folder
from ..recipe import Recipe
from ..studies.study_runner import StageStopped, StageTotals, StudyRunner, with_sibling_run
from ..trained_reward_model import NOT_TRAINED

StageName = Literal["discovery", "refinement"]
STAGES: tuple[StageName, ...] = get_args(StageName)
START = "start"
"""Name of the policy at the start of the curriculum."""


@dataclass(frozen=True, slots=True)
class DevResult:
    """A policy's result on the dev questions.

    Attributes:
        name: "start", or the cycle that trained it: "discovery-1".
        em, f1: Means over the answerable questions, in [0, 1].
        questions: Number of questions; failed ones are included and count as wrong.
        searches, backtracks: Means per question; None if all failed.
        refused: Share of the questions, in [0, 1]; None if all failed.
        refusal_precision, refusal_recall: Shares in [0, 1]; None if every question is answerable
            (precision also if nothing was refused).
        begun_from: Name of its cycle's start policy; None for the curriculum's start.
        pairs: Number of training pairs; None for the curriculum's start.
    """

    name: str
    model: str
    em: float
    f1: float
    questions: int = 0
    searches: float | None = None
    backtracks: float | None = None
    refused: float | None = None
    refusal_precision: float | None = None
    refusal_recall: float | None = None
    begun_from: str | None = None
    pairs: int | None = None


def questions_of(recipe: Recipe) -> int:
    """Returns the number of questions per cycle; 0 if no setting gives it."""
    return recipe.curriculum.questions or recipe.data.limit or 0


def best(results: Sequence[DevResult]) -> DevResult:
    """Returns the result with the highest EM; F1 breaks ties, then the earlier result wins.

    Args:
        results: Results of a stage, its start first. If no cycle improved on it, the start wins.
    """
    return max(results, key=lambda result: (result.em, result.f1))


def stalled(results: Sequence[DevResult], patience: int) -> bool:
    """Returns whether the last `patience` cycles did not raise the best EM.

    Args:
        patience: Number of cycles, 1 or more.
    """
    scores = [result.em for result in results]
    return len(scores) - 1 - scores.index(max(scores)) >= patience


def evaluate_on_dev(
    runner: StudyRunner, name: str, model: str, *, settings: Mapping[str, object] | None = None
) -> DevResult:
    """Evaluates a policy on the dev questions, or reads the stored result.

    Returns:
        The result; in a dry run, one with EM and F1 of 0.

    Raises:
        ConfigError: If no dev question can be answered, so that EM is undefined.
        StageStopped: If the evaluation ended early.
    """
    settings = {
        **(settings or {}),
        "evaluation.set": None,
        "evaluation.mix": [],
        "evaluation.split": "dev",
        "evaluation.limit": runner.recipe.curriculum.dev_questions,
        "evaluation.policies": {name: model},
        "evaluation.baselines": [],
        "evaluation.judge": None,
    }
    totals = runner.run_stage("eval", settings=settings)
    if not totals:
        return DevResult(name, model, 0.0, 0.0)
    (row,) = totals["policies"]
    if row["em"] is None:
        raise ConfigError(
            f"none of the {row['n']} questions of split dev is answerable, so EM cannot compare "
            "policies: raise curriculum.dev_questions"
        )
    copied = row.keys() & {field.name for field in fields(DevResult)}
    return DevResult(name, model, questions=row["n"], **{key: row[key] for key in copied})


REWARD_MODEL = "reward-model"
"""Name of a cycle's reward model, and of the relabelling by its scores."""


@dataclass(frozen=True)
class Cycle:
    """A planned cycle.

    Attributes:
        place: Number of the cycle in the curriculum, from 1.
        start_policy: Policy that rolls out; DPO starts from it and uses it as its reference.
        reward_model: Folder of the reward model that the search uses; None keeps the recipe's.
    """

    stage: StageName
    number: int
    place: int
    start_policy: DevResult
    reward_model: str | None = None

    @property
    def name(self) -> str:
        return f"{self.stage}-{self.number}"

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Returns the settings that turn the curriculum's recipe into this cycle's."""
        questions = questions_of(recipe)
        settings: dict[str, object] = {
            "cycle": self.place,
            "rewards.stage": self.stage,
            "data.skip": recipe.data.skip + (self.place - 1) * questions,
            "data.limit": questions,
        }
        if self.start_policy.name != START:
            settings |= {"policy.model": self.start_policy.model, "policy.weights": None}
        if self.reward_model is not None:
            settings["reward_model"] = self.reward_model
        return settings


def carry_out(runner: StudyRunner, cycle: Cycle) -> tuple[DevResult | None, str | None]:
    """Runs the stages of a cycle; finished ones are skipped.

    Returns:
        Dev result of its policy (None without training pairs), and folder of its reward model
        (None if it trained none).

    Raises:
        StageStopped: If a stage ended early.
    """
    runner, settings = with_sibling_run(runner, cycle.name), cycle.settings(runner.recipe)
    pairs, label, reward_model = _pairs(runner, settings)
    if pairs.get("pairs") == 0:
        return None, reward_model
    trained = runner.run_stage("train-dpo", *label, settings=settings)
    model = str(model_folder(runner.context.run, "dpo"))
    result = evaluate_on_dev(runner, cycle.name, model, settings=settings)
    begun_from = cycle.start_policy.name
    return replace(result, begun_from=begun_from, pairs=trained.get("examples")), reward_model


def _pairs(
    runner: StudyRunner, settings: Mapping[str, object]
) -> tuple[StageTotals, tuple[str, ...], str | None]:
    """Makes the pairs of a cycle, from the labels or from a reward model that learned the labels.

    Returns:
        Totals of the stage that made the pairs, the training options that select them, and the
        reward model.
    """
    recipe = runner.recipe
    scored = recipe.pairs.score == "reward_model"
    by_label = {**settings, "pairs.score": "labels"} if scored else settings
    grown = runner.run_stage("annotate", settings=by_label)
    if grown.get("pairs") == 0 or not recipe.curriculum.reward_model:
        return grown, (), None
    try:
        runner.run_stage("train-rm", settings=by_label)
    except StageStopped as stopped:
        # Few pairs may train the policy but not the reward model; continue if the search does
        # not use it.
        reason = stopped.totals.get(NOT_TRAINED)
        if reason is None or scored or recipe.mcts.uses("reward_model"):
            raise
        runner.context.log(
            f"{runner.title}: continues without a reward model for this cycle: {reason}"
        )
        return grown, (), None
    model = str(model_folder(runner.context.run, REWARD_MODEL))
    if not scored:
        return grown, (), model
    label = ("--label", REWARD_MODEL)
    settings = {**settings, "reward_model": model}
    return runner.run_stage("relabel", *label, settings=settings), label, model
