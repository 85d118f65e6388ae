"""Stages as Python functions (docs/python.md).

A function calls the stage of the command with the same name, so both give the same rows. It raises
errors instead of exiting, and works in a notebook and in any thread.
"""

import io
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from branchwise.base import BranchwiseError, BudgetExceeded, ConfigError, reject_special_files
from branchwise.pipelines.stages import STAGES
from branchwise.rewards import KIND as REWARD_MODEL
from branchwise.runs import (
    BAD_INPUT,
    DONE,
    INTERRUPTED,
    LIMIT_REACHED,
    TOO_MANY_FAILURES,
    WARM_START,
    Recipe,
    StageContext,
    StageResult,
    StoredRun,
    Terminal,
    call_outside_loop,
    existing_run,
    model_folder,
    recipe_path,
    set_library_environment,
)
from branchwise.runs import load_recipe as read_recipe

Totals = Mapping[str, Any]
"""Totals of a stage, as `--json` prints them."""
Overrides = Mapping[str, Any] | None
"""Values of settings by dotted name, such as {"training.dpo.epochs": 2}."""

_TRAINING = threading.Lock()
"""Held by a training: the random state of torch belongs to the process."""


@dataclass(frozen=True)
class TrainedModel:
    """A trained policy or reward model.

    Attributes:
        folder: Model folder, which recipes take as `model:`; a LoRA is in its `adapter/`.
        metrics: Totals of the training; the estimate after a dry run.
    """

    folder: Path
    metrics: Totals


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of several policies.

    Attributes:
        table: Printed tables, as text.
        metrics: Metrics by policy; shares are from 0 to 1. Empty after a dry run.
        totals: Totals of the stage; the cost estimate after a dry run.
    """

    run: StoredRun
    table: str = field(repr=False)
    metrics: Mapping[str, Totals] = field(repr=False)
    totals: Totals = field(repr=False)

    def predictions(self) -> pa.Table:
        """Returns the predictions of this evaluation."""
        table = self.run.predictions()
        return table.filter(pc.equal(table["evaluation"], self.totals.get("set", "")))


class _StageError(BranchwiseError):
    """A stage that ended with results, but not with all of them.

    Attributes:
        run: The run with the rows that were stored.
        totals: Totals of the stage.
    """

    def __init__(self, message: str, run: StoredRun) -> None:
        super().__init__(message)
        self.run = run
        self.totals = run.totals


class LimitReached(_StageError, BudgetExceeded):
    """A limit ended the stage; call the function again to resume (exit code 3)."""


class TooManyFailures(_StageError):
    """More questions failed than `limits.max_failed_share` allows (exit code 4)."""


def load_recipe(name_or_path: str | Path, overrides: Overrides = None) -> Recipe:
    """Reads a recipe file, or the shipped recipe of this name.

    Raises:
        ConfigError: With every mistake in the recipe and the overrides.
    """
    return read_recipe(recipe_path(name_or_path), overrides or {})


def open_run(folder: str | Path) -> StoredRun:
    """Returns an existing run.

    Raises:
        ConfigError: If the folder does not hold a run.
    """
    reject_special_files(Path(folder))
    return StoredRun(Path(folder), existing_run(Path(folder)).recipe)


def annotate(
    recipe: Recipe,
    folder: str | Path,
    *,
    replay: bool = False,
    reread: str | Path | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> StoredRun:
    """Grows and labels trees, and writes preference pairs; resumes a run that ended early.

    Args:
        folder: Run folder, such as "datasets/mine".
        replay: Whether to use stored calls only, which needs no model.
        reread: Folder of a run whose stored replies are read again.
        limit: Most questions; replaces `data.limit`.
        dry_run: Whether to only estimate the cost, which is then in `totals`.
        quiet: Whether to print nothing.

    Raises:
        LimitReached: If a limit of the recipe ended the run before all questions were done.
        TooManyFailures: If more questions failed than the recipe allows.
    """
    context = _context(recipe, folder, quiet, dry_run, limit=limit)
    options = {"replay": replay, "reread": None if reread is None else Path(reread)}
    return _stored_run(context, _call("annotate", context, options))


def relabel(
    run: StoredRun | str | Path,
    overrides: Overrides = None,
    *,
    recipe: Recipe | None = None,
    label: str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> StoredRun:
    """Labels a run with other reward settings; `run.pairs(label)` then returns its pairs.

    Args:
        overrides: Changes of the run's recipe, such as {"rewards.alpha": 0.5}.
        recipe: Recipe to use instead of the run's.
        label: Name of the relabelling; default: a digest of its settings, in `totals["label"]`.
        dry_run: Whether to only count the pairs.
        quiet: Whether to print nothing.
    """
    context = _context(*_own_recipe(run, overrides, recipe), quiet, dry_run)
    return _stored_run(context, _call("relabel", context, {"label": label}))


def warm_start(
    recipe: Recipe,
    folder: str | Path,
    *,
    name: str = WARM_START,
    limit: int | None = None,
    resume: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> TrainedModel:
    """Trains on traces built from gold facts; writes `models/<name of the run folder>/<name>/`.

    Args:
        folder: Run folder of later stages; it need not exist.
        limit: Most questions; replaces `training.warm_start.questions`.
        resume: Whether to fail if the folder has another training's checkpoints, not replace them.
        dry_run: Whether to only estimate the training.
        quiet: Whether to print nothing.
    """
    context = _context(recipe, folder, quiet, dry_run, limit, resume)
    return _trained_model("warm-start", context, name)


def train_sft(
    run: StoredRun | str | Path,
    overrides: Overrides = None,
    *,
    recipe: Recipe | None = None,
    label: str | None = None,
    name: str = "sft",
    resume: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> TrainedModel:
    """Trains a policy on the chosen steps of a run; the arguments are those of `train_dpo`."""
    context = _context(*_own_recipe(run, overrides, recipe), quiet, dry_run, resume=resume)
    return _trained_model("train-sft", context, name, label=label)


def train_dpo(
    run: StoredRun | str | Path,
    overrides: Overrides = None,
    *,
    recipe: Recipe | None = None,
    label: str | None = None,
    name: str = "dpo",
    resume: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> TrainedModel:
    """Trains a policy on the preference pairs of a run; resumes a training that ended early.

    Args:
        overrides: Changes of the run's recipe, such as {"training.dpo.epochs": 2}.
        recipe: Recipe to use instead of the run's.
        label: Relabelling whose pairs are used.
        name: Folder of the model in `models/<name of the run folder>/`.
        resume: Whether to fail if the folder has another training's checkpoints, not replace them.
        dry_run: Whether to only estimate the training.
        quiet: Whether to print nothing.
    """
    context = _context(*_own_recipe(run, overrides, recipe), quiet, dry_run, resume=resume)
    return _trained_model("train-dpo", context, name, label=label)


def train_grpo(
    run: StoredRun | str | Path,
    overrides: Overrides = None,
    *,
    recipe: Recipe | None = None,
    label: str | None = None,
    name: str = "grpo",
    limit: int | None = None,
    resume: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> TrainedModel:
    """Trains a policy on rewards of whole rollouts; the arguments are those of `train_dpo`.

    Args:
        run: Run, or with `recipe` also the folder of a new one.
        label: Relabelling whose trees are used, with `training.grpo.rollouts: trees`.
        limit: Most questions.

    Raises:
        LimitReached: If a limit of the recipe ended the training early.
    """
    context = _context(*_own_recipe(run, overrides, recipe), quiet, dry_run, limit, resume)
    return _trained_model("train-grpo", context, name, label=label)


def train_rm(
    run: StoredRun | str | Path,
    overrides: Overrides = None,
    *,
    recipe: Recipe | None = None,
    name: str = REWARD_MODEL,
    resume: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> TrainedModel:
    """Trains a reward model on sibling steps; the arguments are those of `train_dpo`."""
    context = _context(*_own_recipe(run, overrides, recipe), quiet, dry_run, resume=resume)
    return _trained_model("train-rm", context, name)


def evaluate(
    run: StoredRun | str | Path,
    overrides: Overrides = None,
    *,
    recipe: Recipe | None = None,
    by_type: bool = False,
    limit: int | None = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> Evaluation:
    """Compares the policies of `evaluation.policies` on the same questions.

    Args:
        run: Run, or with `recipe` also the folder of a new one.
        overrides: Changes of the run's recipe, such as {"evaluation.limit": 50}.
        recipe: Recipe to use instead of the run's.
        by_type: Whether the table also has rows by question type.
        limit: Most questions; replaces `evaluation.limit`.
        dry_run: Whether to only estimate the cost, which is then in `totals`.
        quiet: Whether to print nothing.

    Raises:
        LimitReached: If a limit of the recipe ended the evaluation early.
        TooManyFailures: If more questions failed than the recipe allows.
    """
    context = _context(*_own_recipe(run, overrides, recipe), quiet, dry_run, limit)
    result = _call("eval", context, {"by_type": by_type})
    text = io.StringIO()
    if result.table is not None:
        Terminal(text).print(result.table)
    metrics = {row["policy"]: row for row in result.totals.get("policies", ())}
    return Evaluation(_stored_run(context, result), text.getvalue(), metrics, result.totals)


def _own_recipe(
    run: StoredRun | str | Path, overrides: Overrides, recipe: Recipe | None
) -> tuple[Recipe, Path]:
    """Returns the recipe of a call on a run, and the run folder."""
    folder = run.folder if isinstance(run, StoredRun) else Path(run)
    if recipe is None:
        open_run(folder)
        return read_recipe(folder / "config.yaml", overrides or {}), folder
    if overrides:
        raise ConfigError(
            "overrides: they change the run's own recipe. Pass those of another recipe to "
            "load_recipe"
        )
    return recipe, folder


def _context(
    recipe: Recipe,
    folder: str | Path,
    quiet: bool,
    dry_run: bool,
    limit: int | None = None,
    resume: bool = False,
) -> StageContext:
    if limit is not None and limit < 1:
        raise ConfigError(f"limit: not a positive integer ({limit})")
    reject_special_files(Path(folder))
    console = Terminal()
    console.quiet = quiet
    return StageContext(recipe, Path(folder), resume, dry_run, limit, console=console)


def _call(name: str, context: StageContext, options: Mapping[str, Any]) -> StageResult:
    """Runs a stage; raises an error if it did not do all its work."""
    set_library_environment(progress_bars=True)
    trains = name == "warm-start" or name.startswith("train-")
    with _TRAINING if trains else nullcontext():
        result = call_outside_loop(lambda: STAGES[name].run(context, options))
    if result.exit_code == DONE:
        return result
    if result.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    if result.exit_code == LIMIT_REACHED:
        raise LimitReached(f"{name}: {result.reason}", _stored_run(context, result))
    if result.exit_code == TOO_MANY_FAILURES:
        reason = f"{name}: more failures than limits.max_failed_share; see `failures()` of the run"
        raise TooManyFailures(reason, _stored_run(context, result))
    error = ConfigError if result.exit_code == BAD_INPUT else BranchwiseError
    raise error(f"{name}: {result.reason}")


def _stored_run(context: StageContext, result: StageResult) -> StoredRun:
    recipe = context.recipe if context.dry_run else existing_run(context.run).recipe
    return StoredRun(context.run, recipe, result.totals)


def _trained_model(
    stage: str, context: StageContext, name: str, **options: str | None
) -> TrainedModel:
    result = _call(stage, context, {"name": name, **options})
    return TrainedModel(model_folder(context.run, name), result.totals)
