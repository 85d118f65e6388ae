"""Fake stages of a curriculum, which take no time and replace the real ones.

    python -m little_stages <pid of the curriculum> <stage> --run … --set …

Each stage writes the files that the curriculum needs, and logs to LITTLE_LOG when it has begun and
when it has made them. LITTLE_DEATH says when the stage kills the curriculum: "2 begun" means at the
start of its second stage, "1 made" after the first stage's work but before it is recorded.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from branchwise.cli.command_line import parser
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe
from branchwise.storage.manifest import add_parts
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import schema_of

EM = {"start": 0.3, "discovery-1": 0.5, "refinement-1": 0.6}


def main() -> None:
    """Runs one stage."""
    study, options = int(sys.argv[1]), parser().parse_args(sys.argv[2:])
    recipe = load_recipe(options.config, options.overrides)
    say(study, "begun", f"{options.stage} {options.run.name}")
    totals = made(options.stage, options.run, recipe)
    say(study, "made", f"{options.stage} {options.run.name}")
    print(json.dumps(totals))


def say(study: int, event: str, what: str) -> None:
    """Logs an event; at the event LITTLE_DEATH, kills the curriculum and exits."""
    log = Path(os.environ["LITTLE_LOG"])
    with log.open("a") as file:
        file.write(f"{study} {event} {what}\n")
    number = sum(line.startswith(f"{study} {event} ") for line in log.read_text().splitlines())
    if os.environ["LITTLE_DEATH"] == f"{number} {event}":
        os.kill(study, signal.SIGKILL)
        sys.exit(1)


def made(stage: str, run: Path, recipe: Recipe) -> dict[str, Any]:
    """Writes the files of the stage; returns its totals."""
    run.mkdir(parents=True, exist_ok=True)
    if stage == "annotate":
        return {**parts(run, "questions", "trees", "pairs"), "pairs": 9}
    if stage == "eval":
        (policy,) = recipe.evaluation.policies
        parts(run, f"eval/{policy}/s/predictions", f"eval/{policy}/s/failures")
        return {"set": "s", "policies": [dev_row(policy)]}
    return {"model": str(model(run, stage)), "pairs": 9, "examples": 7}


def parts(run: Path, *tables: str) -> dict[str, Any]:
    """Writes tables of one row without values."""
    for table in tables:
        row = pa.Table.from_pylist([{}], schema=schema_of(table))
        add_parts(run, [write_part(run, table, row, 0)])
    return {}


def model(run: Path, stage: str) -> Path:
    """Writes a placeholder for a model in the folder that contains the runs."""
    folder = run.parent / "models" / run.name / stage
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    for weights in ("adapter/weights", "heads.safetensors"):
        (folder / weights).write_text(run.name)
    (folder / "training.json").write_text("{}")
    return folder


def dev_row(policy: str) -> dict[str, Any]:
    """Returns the row of a policy in the results of an evaluation."""
    behaviour = {"searches": 3.0, "backtracks": 0.5, "refused": 0.1}
    refusals = {"refusal_precision": None, "refusal_recall": None}
    return {"policy": policy, "n": 9, "em": EM.get(policy, 0.1), "f1": 0.5, **behaviour, **refusals}


if __name__ == "__main__":
    main()
