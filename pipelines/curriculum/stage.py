"""`make curriculum`: Discovery, then Refinement, each in cycles (EVO-RAG sections 3.4 to 3.7).

    branchwise curriculum --config configs/evo-rag.yaml --run datasets/evo-rag

A cycle grows trees with its start policy and trains a reward model on all sibling pairs
(`train-rm`). With `pairs.score: reward_model` it relabels the trees with its scores. It then trains
the policy (`train-dpo`; start and reference are the cycle's start policy) and evaluates it on
split `dev`. The next cycle starts from that policy, with new questions. Refinement starts from the
best policy of Discovery, its start included. A stage ends after `curriculum.cycles`, or when dev EM
has not risen for `curriculum.patience` cycles.

Every cycle has a sibling run folder, and every stage its own process, recorded in
`curriculum/journal.jsonl`. If it is interrupted, rerun the command to resume. Table (terminal,
Markdown, CSV) and plot are next to the journal.
"""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from branchwise.base import (
    ConfigError,
    RunLock,
    atomic_write_json,
    atomic_write_text,
    object_inside,
)
from branchwise.engines import model_digest
from branchwise.rewards import naming
from branchwise.runs import (
    MEMORY_SETTINGS,
    STAGES,
    START,
    Cycle,
    DevResult,
    Recipe,
    StageContext,
    StageName,
    StageResult,
    StageStopped,
    StudyRunner,
    best,
    cannot_serve_trained_reason,
    carry_out,
    check_run_folder,
    check_unchanged,
    dump_recipe,
    encoder_of,
    evaluate_on_dev,
    flat,
    load_recipe,
    model_files,
    open_data,
    open_run,
    overrides,
    questions_of,
    require,
    require_matplotlib,
    reward_model_files,
    settings_by_identity,
    stalled,
    write_curriculum_report,
)
from branchwise.weights import policy_files

FITS = (
    *MEMORY_SETTINGS,
    "training.dpo.max_length",
    "training.max_dropped_share",
    "training.reward_model.max_length",
)
"""Settings that let a training resume after it ran out of memory or prompt length."""

FOLDER = "curriculum"
"""Subfolder of the run: journal, tables, recipe and start of the curriculum."""
BEGUN = "begun.yaml"
"""File with the recipe at the start; `config.yaml` has the one of the last stage."""

MAY_CHANGE = ("limits.", "curriculum.cycles.refinement", *FITS)
"""Settings that may change when a curriculum resumes. Finished cycles stay valid."""
START_POLICY_FILE = "start.json"
"""Which weights the curriculum was started with, next to its journal."""


def curriculum(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    recipe, settings = context.recipe, context.recipe.curriculum
    check_curriculum(context)
    context.log(
        f"curriculum: cycles of Discovery up to {settings.cycles.discovery}, of Refinement up to "
        f"{settings.cycles.refinement}; {questions_of(recipe)} questions each, "
        f"{settings.dev_questions} dev questions; policy {recipe.policy.model}; "
        f"run folders {context.run}, {context.run}-<stage>-<number>"
    )
    course = CurriculumState(
        StudyRunner(context, (recipe.seed,), context.run / FOLDER, "curriculum", FITS)
    )
    if context.dry_run:
        context.log(
            "dry run: assumes that every cycle runs, and that Discovery's last cycle is its best"
        )
        course.run()
        return StageResult({"cycles": settings.cycles.total, "dry_run": True})
    open_run(context.run, recipe, {})
    course.runner.folder.mkdir(exist_ok=True)
    try:
        with RunLock(course.runner.folder / "curriculum.lock"):
            record_start_policy(course.runner.folder, recipe, model_digest(recipe.policy))
            final = course.run()
    except StageStopped as stopped:
        context.log(f"curriculum: {stopped}")
        return StageResult({**course.totals(), "stopped": str(stopped)}, stopped.exit_code)
    context.log(f"curriculum: its policy is {final.model} ({final.name})")
    if final.name != START:
        context.log(f"evaluate it on test: {final_eval_command(context, final)}")
        context.log(f"export it:       branchwise export --model {final.model}")
    return StageResult({**course.totals(), "final": asdict(final)})


def check_curriculum(context: StageContext) -> None:
    """Runs all checks of a curriculum.

    Raises:
        ConfigError: If the recipe is not a curriculum's, the run folder holds another one, or there
            are too few questions.
    """
    recipe = context.recipe
    check_run_folder(context.run)
    if faults := list(_faults(recipe)):
        raise ConfigError("\n".join(faults))
    require_matplotlib()
    begun = context.run / FOLDER / BEGUN
    if begun.exists():
        check_unchanged(context.run, _fixed_settings(load_recipe(begun)), _fixed_settings(recipe))
    for role, model in recipe.annotating_models.items():
        require(model_files(role, model))
    if recipe.mcts.uses("reward_model"):  # each cycle scores pairs with its own reward model
        require(reward_model_files(recipe.reward_model))
    if recipe.curriculum.reward_model:
        policy_files(encoder_of(recipe))
    cycles, each = recipe.curriculum.cycles.total, questions_of(recipe)
    all_of_them = recipe.data.model_copy(update={"limit": cycles * each})
    available = len(open_data(recipe.model_copy(update={"data": all_of_them})).questions)
    if available < cycles * each:
        raise ConfigError(
            f"curriculum: {cycles} cycles need {each} questions each, but there are {available}: "
            "lower curriculum.questions or curriculum.cycles"
        )


def _faults(recipe: Recipe) -> Iterator[str]:
    scheme = recipe.scheme
    if not scheme.stages:
        yield (
            f"curriculum: the reward scheme `{recipe.rewards.scheme}` does not have stages; set "
            f"rewards.scheme: {naming(lambda scheme: bool(scheme.stages))}"
        )
    elif not any(scheme.weights(0).values()):
        yield (
            "curriculum: all reward weights are 0, so there would be no pairs to train on: choose "
            "another rewards.schedule"
        )
    if recipe.pairs.score == "reward_model" and not recipe.curriculum.reward_model:
        yield (
            "pairs.score is `reward_model`, which each cycle must train, but "
            "curriculum.reward_model is false: set it to true, or pairs.score to labels"
        )
    if fault := cannot_serve_trained_reason(recipe.policy):
        yield fault
    if not questions_of(recipe):
        yield (
            "curriculum.questions and data.limit are not set, so the first cycle would use all "
            "questions: set curriculum.questions"
        )
    for settings in recipe.data.mix or (recipe.data,):
        if settings.split not in {"train", "warm"}:
            yield (
                f"data.split of {settings.source} is {settings.split or 'not set'}, so cycles "
                "could train on questions of dev or test: set it to train"
            )


def _fixed_settings(recipe: Recipe) -> dict[str, Any]:
    settings = flat(settings_by_identity(recipe))
    return {name: value for name, value in settings.items() if not name.startswith(MAY_CHANGE)}


def final_eval_command(context: StageContext, final: DevResult) -> str:
    """Returns the command that evaluates the start and the final policy on test."""
    policies = {START: context.recipe.policy.trainable, final.name: final.model}
    words = overrides({"evaluation.policies": policies})
    return shlex.join(("branchwise", "eval", "--run", f"{context.run}-{final.name}", *words))


def record_start_policy(folder: Path, recipe: Recipe, digest: str) -> None:
    """Records the recipe, and the start policy of all cycles.

    The record is next to the journal, because the run folder's record belongs to `annotate`, which
    may use other settings.

    Args:
        recipe: `check_curriculum` has compared it with the one that is there.

    Raises:
        ConfigError: If the curriculum was started with another start.
    """
    start_policy = {"policy": digest}
    try:
        check_unchanged(folder, object_inside(folder, START_POLICY_FILE), start_policy)
    except FileNotFoundError:
        atomic_write_json(folder / START_POLICY_FILE, start_policy)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / START_POLICY_FILE}: cannot be read ({error}), so the start policy of the "
            "curriculum is unknown. Restore the file"
        ) from error
    if not (folder / BEGUN).exists():
        atomic_write_text(folder / BEGUN, dump_recipe(recipe))


@dataclass
class CurriculumState:
    """The curriculum as far as it has come.

    Attributes:
        places: cycles started, with or without a result.
    """

    runner: StudyRunner
    results: list[DevResult] = field(default_factory=list)
    chosen: dict[StageName, DevResult] = field(default_factory=dict)
    places: int = 0
    reward_model: str | None = None

    def run(self) -> DevResult:
        """Runs both stages; returns the final policy."""
        result = evaluate_on_dev(self.runner, START, self.runner.recipe.policy.model)
        self._note(result)
        for stage in STAGES:
            result = self._best_of(stage, result)
        return result

    def _best_of(self, stage: StageName, start_policy: DevResult) -> DevResult:
        context, settings = self.runner.context, self.runner.recipe.curriculum
        results = [start_policy]
        for number in range(1, getattr(settings.cycles, stage) + 1):
            # A dry run has only results without metrics.
            if not context.dry_run and stalled(results, settings.patience):
                context.log(
                    f"curriculum: {stage} ends: no higher dev EM for {settings.patience} cycles"
                )
                break
            result = self._cycle(stage, number, results[-1])
            if result is None:
                break
            results.append(result)
            self.chosen[stage] = best(results)
            self._note(result)
        return results[-1] if context.dry_run else best(results)

    def _cycle(self, stage: StageName, number: int, start_policy: DevResult) -> DevResult | None:
        self.places += 1
        searches = self.runner.recipe.mcts.uses("reward_model")
        searched_with = self.reward_model if searches else None
        cycle = Cycle(stage, number, self.places, start_policy, searched_with)
        self.runner.context.log(f"curriculum: {cycle.name}, starts from {start_policy.model}")
        result, trained = carry_out(self.runner, cycle)
        if result is None:
            self.runner.context.log(
                f"curriculum: {stage} ends because {cycle.name} yielded no pairs"
            )
        self.reward_model = trained or self.reward_model
        return result

    def _note(self, result: DevResult) -> None:
        self.results.append(result)
        if not self.runner.context.dry_run:
            write_curriculum_report(self.runner, self.results, self.chosen)

    def totals(self) -> dict[str, Any]:
        """Returns the totals for the JSON line."""
        return {
            "folder": str(self.runner.folder),
            "policies": [asdict(result) for result in self.results],
            "best": {stage: result.name for stage, result in self.chosen.items()},
        }
