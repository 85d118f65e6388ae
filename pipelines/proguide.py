"""`make export-pairs` and `make import-pairs`: RAG-ProGuide JSON out of a run, or into one.

    branchwise export-pairs --run datasets/atlas --file pairs.json
    branchwise import-pairs --run datasets/proguide --file RAG_ProGuide.json

An imported run holds pairs alone: train on it with `train-dpo` or `train-sft`.
"""

from pathlib import Path
from typing import Annotated

from base.errors import ConfigError
from base.reading import Faults
from base.text import digest_of
from runs.annotation.proguide import pairs_of_records, write_proguide
from runs.annotation.stored_pairs import pairs_of, pairs_table
from runs.folder import check_run_folder, existing_run, open_run
from runs.stage import StageContext, StageResult
from sources.files import read_rows
from storage.records import Pair

File = Annotated[Path, "the RAG-ProGuide JSON file"]


def export_pairs(context: StageContext, file: File) -> StageResult:
    """Writes the run's pairs as RAG-ProGuide JSON."""
    run = existing_run(context.run)
    pairs = pairs_of(run, pairs_table())
    if context.dry_run:
        context.log(f"export-pairs: {len(pairs)} pairs → {file}")
        return StageResult({"pairs": len(pairs), "dry_run": True})
    written = write_proguide(file, pairs)
    context.log(f"wrote {written} pairs to {file}")
    return StageResult({"pairs": written, "file": str(file)})


def import_pairs(context: StageContext, file: File) -> StageResult:
    """Reads RAG-ProGuide JSON into a run of its own."""
    pairs = read_proguide(file)
    if not pairs:
        raise ConfigError(f"{file}: contains no pairs")
    check_run_folder(context.run, context.recipe)
    if context.dry_run:
        context.log(f"import-pairs: {len(pairs)} pairs → {context.run}")
        return StageResult({"pairs": len(pairs), "dry_run": True})
    # The digest keeps an annotation, or another file, from adding to this run.
    inputs = {"imported_pairs": digest_of(*(pair.pair_id for pair in pairs))}
    run = open_run(context.run, context.recipe, {"imported": str(file)}, inputs)
    with run.held():
        run.commit([run.write_part("pairs", pairs, 0)])
    context.log(f"imported {len(pairs)} pairs into {context.run}")
    return StageResult({"pairs": len(pairs), "run": str(context.run)})


def read_proguide(path: Path) -> list[Pair]:
    """Returns the pairs of a published file (a JSON list, or JSONL; `.gz` too).

    Raises:
        ConfigError: If records are faulty; lists all faults with file and record.
    """
    faults = Faults()
    pairs = list(pairs_of_records(read_rows(path, faults), faults))
    faults.raise_any()
    return pairs
