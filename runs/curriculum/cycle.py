"""One cycle of a curriculum: grow trees, train a reward model, train the policy, evaluate on dev.

Source: EVO-RAG sections 3.4 and 3.7 (algorithm 1). Each cycle is an ordinary run folder next to the
curriculum's, `datasets/<run>-<cycle>`, with models in `models/<run>-<cycle>`. So `inspect`,
`diagnose` and `verify` work on it. The recipe is the curriculum's, with the `--set` options of the
stages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runs.annotation.reward_model import UNTAUGHT
from runs.curriculum.checks import questions_of
from runs.curriculum.dev import START, DevResult, StageName, evaluate_on_dev
from runs.factories import model_folder
from runs.recipe import Recipe
from runs.studies.study_runner import StageStopped, StageTotals, StudyRunner, with_sibling_run

REWARD_MODEL = "reward-model"
"""Name of a cycle's reward model, and of the relabelling by its scores."""


@dataclass(frozen=True)
class Cycle:
    """A planned cycle.

    Attributes:
        stage: Curriculum stage; selects the reward weights.
        number: Number of the cycle in its stage, from 1.
        place: Number of the cycle in the curriculum, from 1.
        start_policy: Policy that rolls out; DPO starts from it and uses it as its reference.
        asks: Folder of the reward model that the search uses; None keeps the recipe's.
    """

    stage: StageName
    number: int
    place: int
    start_policy: DevResult
    asks: str | None = None

    @property
    def name(self) -> str:
        return f"{self.stage}-{self.number}"

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Returns the settings that turn the curriculum's recipe into this cycle's."""
        questions = questions_of(recipe)
        found: dict[str, object] = {
            "cycle": self.place,
            "rewards.stage": self.stage,
            "data.skip": recipe.data.skip + (self.place - 1) * questions,
            "data.limit": questions,
        }
        if self.start_policy.name != START:
            found |= {"policy.model": self.start_policy.model, "policy.weights": None}
        if self.asks is not None:
            found["reward_model"] = self.asks
        return found


@dataclass(frozen=True)
class CycleResult:
    """Result of a cycle.

    Attributes:
        result: Dev result of its policy; None without training pairs.
        reward_model: Folder of the cycle's reward model; None if it trained none.
    """

    result: DevResult | None
    reward_model: str | None = None


def carry_out(runner: StudyRunner, cycle: Cycle) -> CycleResult:
    """Runs the stages of a cycle; finished ones are skipped.

    Args:
        runner: Runner of the curriculum.
        cycle: Cycle to run.

    Raises:
        StageStopped: If a stage ended early.
    """
    own, settings = with_sibling_run(runner, cycle.name), cycle.settings(runner.recipe)
    pairs, label, reward_model = _pairs(own, settings)
    if pairs.get("pairs") == 0:
        return CycleResult(None, reward_model)
    trained = own.run_stage("train-dpo", *label, settings=settings)
    model = str(model_folder(own.context.run, "dpo"))
    result = evaluate_on_dev(own, cycle.name, model, settings=settings)
    begun = replace(result, begun_from=cycle.start_policy.name, pairs=trained.get("examples"))
    return CycleResult(begun, reward_model)


def _pairs(
    own: StudyRunner, settings: Mapping[str, object]
) -> tuple[StageTotals, tuple[str, ...], str | None]:
    """Makes the pairs of a cycle, from the labels or from a reward model that learned the labels.

    Returns:
        Totals of the stage that made the pairs, the training options that select them, and the
        reward model.
    """
    recipe = own.recipe
    scored = recipe.pairs.score == "reward_model"
    by_label = {**settings, "pairs.score": "labels"} if scored else settings
    grown = own.run_stage("annotate", settings=by_label)
    if grown.get("pairs") == 0 or not recipe.curriculum.reward_model:
        return grown, (), None
    try:
        own.run_stage("train-rm", settings=by_label)
    except StageStopped as stopped:
        # Few pairs may train the policy but not the reward model; continue if the search does
        # not use it.
        why = stopped.totals.get(UNTAUGHT)
        if why is None or scored or recipe.mcts.evaluator == "reward_model":
            raise
        own.context.log(f"{own.title}: continues without a reward model for this cycle: {why}")
        return grown, (), None
    model = str(model_folder(own.context.run, REWARD_MODEL))
    if not scored:
        return grown, (), model
    label = ("--label", REWARD_MODEL)
    asked = {**settings, "reward_model": model}
    return own.run_stage("relabel", *label, settings=asked), label, model
