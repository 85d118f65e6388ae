"""`make export-pairs` and `make import-pairs`: RAG-ProGuide JSON out of a run, or into one.

    branchwise export-pairs --run datasets/atlas --file pairs.json
    branchwise import-pairs --run datasets/proguide --file RAG_ProGuide.json

An imported run holds pairs alone: train on it with `train-dpo` or `train-sft`.
"""

from pathlib import Path

from pipelines.run import existing_run, open_run
from pipelines.stage import Invocation, Outcome
from pipelines.train_dpo import pairs_of
from storage.errors import ConfigError
from storage.manifest import add_parts, load_manifest
from storage.parts import write_part
from storage.proguide import read_proguide, write_proguide
from storage.schemas import rows_to_table, schema_of


def export_pairs(call: Invocation) -> Outcome:
    """Write the run's pairs as RAG-ProGuide JSON."""
    existing_run(call.run)
    target = Path(call.options["file"])
    written = write_proguide(target, pairs_of(call.run))
    call.say(f"wrote {written} pairs to {target}")
    return Outcome({"pairs": written, "file": str(target)})


def import_pairs(call: Invocation) -> Outcome:
    """Read RAG-ProGuide JSON into a run of its own."""
    pairs = list(read_proguide(Path(call.options["file"])))
    if not pairs:
        raise ConfigError(f"{call.options['file']}: holds no pair")
    run = open_run(call.run, call.recipe, {"imported": str(call.options["file"])})
    if load_manifest(run.folder).of("trees"):
        raise ConfigError(f"{call.run} holds an annotation; import into a RUN of its own")
    rows = rows_to_table(pairs, schema_of("pairs"), run.id)
    add_parts(run.folder, [write_part(run.folder, "pairs", rows, 0)])
    call.say(f"imported {len(pairs)} pairs into {call.run}")
    return Outcome({"pairs": len(pairs), "run": str(call.run)})
