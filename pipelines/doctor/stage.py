"""`make doctor`: checks this machine, and whether the recipe can run on it.

Looks for the recipe's files, draws one token from every model at an endpoint, queries its search
server, and names all that is wrong with them and with the run folder.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from branchwise.base import Sheet
from branchwise.runs import (
    BAD_INPUT,
    DONE,
    Check,
    Recipe,
    StageContext,
    StageResult,
    check_run_folder,
    data_files,
    environment_facts,
    evaluated,
    failed_checks,
    log_notes,
    missing_packages,
    model_files,
    reward_model_files,
    servers,
    start_files,
)
from branchwise.storage import check_cache_not_shared

EXTRAS = ("cpu", "train", "dense", "study")


def doctor(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    facts = environment_facts()
    free = shutil.disk_usage(".").free / 2**30
    shown = {**facts, "free disk": f"{free:.0f} GiB"}
    rows = tuple((n, _plain(v)) for n, v in shown.items() if n not in {"created", "command"})
    context.console.print(Sheet("this machine", ("fact", "value"), rows, names=2).text())
    for extra in EXTRAS:
        missing = missing_packages(extra)
        context.log(f"extra {extra}: {'missing ' + ', '.join(missing) if missing else 'installed'}")
    recipe = context.recipe
    problems = list(dict.fromkeys(problems_of(recipe, context.run)))
    for problem in problems:
        context.log(f"problem: {problem}")
    log_notes(context, recipe.annotating_models | recipe.other_endpoints())
    policy = recipe.policy
    trainings = {"train-sft", "train-dpo", "train-grpo"} & set(recipe.stages)
    if policy.engine == "openai" and policy.weights is None and trainings:
        context.log(
            f"note: {', '.join(sorted(trainings))} will need policy.weights, the weights that the "
            "endpoint serves"
        )
    context.log("fix these problems first" if problems else "the recipe can run here")
    return StageResult({"problems": problems}, BAD_INPUT if problems else DONE)


def problems_of(recipe: Recipe, run: Path) -> Iterator[str]:
    """Returns the problems that would stop this recipe here."""
    folder: Check = ("run", partial(check_run_folder, run))
    cache: Check = ("cache", check_cache_not_shared)
    base = start_files("training.warm_start.base", recipe.policy, recipe.training.warm_start.base)
    models = recipe.annotating_models.items()
    files = (check for role, model in models for check in model_files(role, model))
    reward_model = reward_model_files(recipe.active_reward_model)
    yield from failed_checks(chain([folder, cache], data_files(recipe), files, reward_model, base))
    at_servers = list(failed_checks(servers(recipe, draw=True)))
    yield from at_servers
    yield from failed_checks(evaluated(recipe, run, policy_works=not at_servers))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if part)
    if isinstance(value, list):
        return " ".join(str(part) for part in value)
    return "–" if value is None else str(value)
