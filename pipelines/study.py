"""`make study STUDY=<name>`: a recorded experiment, from its trees to its table.

    branchwise study --name atlas-dpo --seeds 0 1 2

Each study is one module in `experiments/`; its recipe is `configs/<name>.yaml` and its run folder
`datasets/<name>`. It runs the ordinary stages, each in its own process, and records them in
`study/journal.jsonl`. If it is interrupted, rerun the command to resume. Tables (terminal,
Markdown, CSV), plots and the list of all started stages are in `study/` of the run folder, or in
`study/<name>/` if studies share a run.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

from base.errors import ConfigError
from base.lock import RunLock
from runs.folder import STUDY, check_run_folder, existing_run
from runs.preflight import cannot_serve_trained_reason, require_matplotlib
from runs.stage import StageContext, StageResult
from runs.studies.study_runner import StageStopped, StudyRunner

STUDIES = {
    "atlas-dpo": "experiments.atlas_dpo",
    "real-dpo": "experiments.real_dpo",
    "labels": "experiments.labels",
    "search": "experiments.search",
    "recipes": "experiments.recipes",
    "arena-grpo": "experiments.arena_grpo",
    "evo-schedules": "experiments.evo.schedules",
    "evo-literal": "experiments.evo.literal",
    "evo-single": "experiments.evo.single",
    "evo-heads": "experiments.evo.heads",
    "evo-combinations": "experiments.evo.combinations",
    "evo-step-value": "experiments.evo.step_value",
}
"""A study's module; its function has the study's name."""

SHARED = {
    **{name: "evo-studies" for name in STUDIES if name.startswith("evo-")},
    "arena-grpo": "arena",
}
"""Studies that share a recipe, and so a run folder and its trees, with each other or with users."""

SEEDS = {
    "recipes": (0,),
    "arena-grpo": (0, 1),
    "evo-schedules": (0,),
    "evo-literal": (0, 1),
    "evo-single": (0,),
    "evo-heads": (0, 1, 2, 3, 4),
    "evo-combinations": (0,),
    "evo-step-value": (0, 1),
}
"""Default seeds of studies, if not three, so that two cores finish in reasonable time."""

STUDIES_WITHOUT_TRAINING = frozenset({"labels", "evo-heads"})
"""Studies whose policy may be served by an endpoint."""

STUDIES_OF_EXISTING_RUN = frozenset({"labels", "recipes"})
"""Studies of the trees of a run that is there."""


def study(
    context: StageContext,
    name: Annotated[str, "which: atlas-dpo, …; see docs/studies.md"],
    seeds: Annotated[tuple[int, ...], "of the trainings"] = (),
) -> StageResult:
    """Runs the stage (see module)."""
    carry_out = study_named(name)
    check_run_folder(context.run)
    if name in STUDIES_OF_EXISTING_RUN:
        existing_run(context.run)
    require_matplotlib()
    fault = (
        None
        if name in STUDIES_WITHOUT_TRAINING
        else cannot_serve_trained_reason(context.recipe.policy)
    )
    if fault:
        raise ConfigError(f"study {name}: {fault}")
    output_folder = context.run / STUDY / name if name in SHARED else None
    runner = StudyRunner(context, seeds_of(name, seeds), output_folder)
    try:
        if context.dry_run:
            carry_out(runner)
        else:
            runner.folder.mkdir(parents=True, exist_ok=True)
            # Studies that share a run also share model folders.
            with RunLock(context.run / STUDY / "study.lock"):
                carry_out(runner)
    except StageStopped as stopped:
        context.log(f"study {name}: {stopped}")
        return StageResult({"study": name, "stopped": str(stopped)}, stopped.exit_code)
    return StageResult({"study": name, "folder": str(runner.folder)})


def recipe_of(name: str) -> Path:
    """Returns the path of a study's own recipe, if it has one."""
    return Path("configs") / f"{SHARED.get(name, name)}.yaml"


def seeds_of(name: str, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the seeds of the trainings.

    Raises:
        ConfigError: If one is named twice, which would count one training as two.
    """
    seeds = tuple(seeds or SEEDS.get(name, (0, 1, 2)))
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise ConfigError(f"--seeds names {', '.join(map(str, twice))} more than once")
    return seeds


def study_named(name: str) -> Callable[[StudyRunner], None]:
    """Returns the function of a study.

    Raises:
        ConfigError: If the study is unknown.
    """
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        raise ConfigError(f"study {name!r}: no such study; there are {known}")
    found: Callable[[StudyRunner], None] = getattr(
        import_module(STUDIES[name]), name.replace("-", "_")
    )
    return found
