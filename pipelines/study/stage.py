"""`make study STUDY=<name>`: a recorded experiment, from its trees to its table.

    branchwise study --name atlas-dpo --seeds 0 1 2

Each study is one module in `studies/`; its recipe is `configs/<name>.yaml` and its run folder
`datasets/<name>`. It runs the ordinary stages, each in its own process, and records them in
`study/journal.jsonl`. If it is interrupted, rerun the command to resume. Tables (terminal,
Markdown, CSV), plots and the list of all started stages are in `study/` of the run folder, or in
`study/<name>/` if studies share a run.
"""

from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from branchwise.base import ConfigError, RunLock
from branchwise.runs import (
    SHIPPED_RECIPES,
    STUDY,
    StageContext,
    StageResult,
    StageStopped,
    Study,
    StudyRunner,
    cannot_serve_trained_reason,
    check_run_folder,
    existing_run,
    require_matplotlib,
)

STUDIES = {
    "atlas-dpo": "branchwise.studies.atlas_dpo",
    "real-dpo": "branchwise.studies.real_dpo",
    "labels": "branchwise.studies.labels",
    "search": "branchwise.studies.search",
    "recipes": "branchwise.studies.recipes",
    "arena": "branchwise.studies.arena",
    "eval-rar": "branchwise.studies.eval_rar",
    "r1-searcher": "branchwise.studies.r1_searcher",
    "reading-curve": "branchwise.studies.reading_curve",
    "supervision": "branchwise.studies.supervision",
    "supervision-rates": "branchwise.studies.supervision_rates",
    "evo-schedules": "branchwise.studies.evo.schedules",
    "evo-literal": "branchwise.studies.evo.literal",
    "evo-single": "branchwise.studies.evo.single",
    "evo-heads": "branchwise.studies.evo.heads",
    "evo-combinations": "branchwise.studies.evo.combinations",
    "evo-step-value": "branchwise.studies.evo.step_value",
}
"""A study's module, which has it as `STUDY`."""


def study(
    context: StageContext,
    name: Annotated[str, "which: atlas-dpo, …; see docs/studies.md"],
    seeds: Annotated[tuple[int, ...], "of the trainings"] = (),
    arms: Annotated[tuple[str, ...], "to run alone, if the study allows it"] = (),
) -> StageResult:
    """Runs the stage (see module)."""
    chosen = study_named(name)
    check_run_folder(context.run)
    if chosen.of_existing_run:
        existing_run(context.run)
    if unknown := ", ".join(arm for arm in arms if arm not in chosen.arms):
        if chosen.arms:
            raise ConfigError(
                f"--arms {unknown}: study {name} has the arms {', '.join(chosen.arms)}"
            )
        raise ConfigError(f"--arms: study {name} runs all its arms together; remove the option")
    if seeds and not chosen.seeds:
        raise ConfigError(f"--seeds: study {name} uses none; set `seed` with --set instead")
    require_matplotlib()
    if chosen.trains and (fault := cannot_serve_trained_reason(context.recipe.policy)):
        raise ConfigError(f"study {name}: {fault}")
    if repeated := sorted(seed for seed, n in Counter(seeds).items() if n > 1):
        # One training would count as two.
        raise ConfigError(f"--seeds names {', '.join(map(str, repeated))} more than once")
    output_folder = context.run / STUDY / name if chosen.recipe else None
    runner = StudyRunner(context, seeds or chosen.seeds, output_folder, arms=arms)
    try:
        if context.dry_run:
            chosen.carry_out(runner)
        else:
            runner.folder.mkdir(parents=True, exist_ok=True)
            # Studies that share a run also share model folders.
            with RunLock(context.run / STUDY / "study.lock"):
                chosen.carry_out(runner)
    except StageStopped as stopped:
        context.log(f"study {name}: {stopped}")
        return StageResult({"study": name, "stopped": str(stopped)}, stopped.exit_code)
    return StageResult({"study": name, "folder": str(runner.folder)})


def recipe_of(name: str) -> Path:
    """Returns the path of a study's own recipe, if it has one."""
    shared = study_named(name).recipe if name in STUDIES else None
    return SHIPPED_RECIPES / f"{shared or name}.yaml"


def study_named(name: str) -> Study:
    """Returns a study.

    Raises:
        ConfigError: If it is unknown, or if a wheel without studies is installed.
    """
    if name not in STUDIES:
        raise ConfigError(f"study {name!r}: no such study; there are {', '.join(STUDIES)}")
    if find_spec("branchwise.studies") is None:
        raise ConfigError("the installed package has no studies: run this command in a checkout")
    chosen: Study = import_module(STUDIES[name]).STUDY
    return chosen
