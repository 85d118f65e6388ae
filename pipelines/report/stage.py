"""`make report`: a run as one HTML page, with every tree.

    branchwise report --run datasets/atlas

Writes `report.html` into the run folder: cost and yields, distributions, training curves of
`models/<run>/`, evaluations, a viewer of all trees, and up to 5,000 pairs side by side. The file
works offline. It contains questions, passages and model text.
"""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from branchwise.base import BranchwiseError, Log, object_inside
from branchwise.report import facts, pairs_of, trees_of, write_page
from branchwise.runs import (
    Run,
    StageContext,
    StageResult,
    describe_costs,
    describe_search,
    dump_recipe,
    existing_run,
    model_folder,
    open_data,
)
from branchwise.storage import load_manifest
from branchwise.types import Passage

PAGE = "report.html"


def report(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    return StageResult(write_report(existing_run(context.run), context.log))


def write_report(run: Run, log: Log) -> dict[str, Any]:
    """Writes the report of a run; returns the stage's totals."""
    trees = trees_of(run.folder, _passages(run, log))
    pairs = pairs_of(run.folder)
    shown = {
        "run": _about(run),
        "cost": _cost(run),
        "yields": facts.yields(run.folder),
        "pairs": load_manifest(run.folder).rows("pairs"),
        "dropped": facts.dropped(load_manifest(run.folder)),
        "failures": facts.failures(run.folder),
        "distributions": facts.distributions(run.folder),
        "trainings": facts.trainings(model_folder(run.folder, "dpo").parent),
        "evaluations": facts.evaluations(run.folder),
    }
    page = run.folder / PAGE
    write_page(page, shown, trees, pairs)
    size = page.stat().st_size
    log(
        f"wrote {page} ({size / 1e6:.1f} MB): {len(trees.index):,} trees, "
        f"{len(pairs.index):,} of {shown['pairs']:,} pairs. Open it in a browser"
    )
    return {"report": str(page), "bytes": size, "trees": len(trees.index)}


def _passages(run: Run, log: Log) -> dict[str, Passage]:
    """Returns the corpus by id; empty if it cannot be read any more."""
    try:
        return {passage.id: passage for passage in open_data(run.recipe).passages}
    except (BranchwiseError, OSError) as error:
        log(f"passages are shown by title only: {error}")
        return {}


def _about(run: Run) -> dict[str, Any]:
    recipe = run.recipe
    sources = " and ".join(settings.source for settings in recipe.data.mix or (recipe.data,))
    facts = run.record.facts
    return {
        "name": run.folder.name,
        "summary": f"{recipe.agent.protocol} on {sources}: {describe_search(recipe.mcts)}",
        "facts": {
            "policy": f"{recipe.policy.engine}: {recipe.policy.model}",
            "judge": recipe.judge.model if recipe.judge else "none",
            "labels": recipe.scheme.describe(),
            "created": facts.get("created", "unknown"),
            "Branchwise": f"{version('branchwise')}, {facts.get('git_revision', 'unknown')}",
            "seed": recipe.seed,
        },
        "recipe": dump_recipe(recipe),
    }


def _servers(run: Run) -> Iterator[str]:
    """Yields the work of each server of a fleet in the latest stage that used it."""
    for file in sorted((run.folder / "logs").glob("servers-*.json")):
        for name, work in object_inside(run.folder, f"logs/{file.name}").items():
            yield f"server {name}: {work}"


def _cost(run: Run) -> list[str]:
    try:
        with run.open_ledger() as ledger:
            spent = ledger.totals()
            tokens = (
                f"{spent.input_tokens:,} input tokens ({spent.cached_tokens:,} cached), "
                f"{spent.output_tokens:,} output tokens"
            )
            return [tokens, *describe_costs(ledger, run.recipe.limits), *_servers(run)]
    except BranchwiseError as error:
        return [f"unknown: {error}"]
