"""`make import-pairs`: a run from RAG-ProGuide JSON (`runs.proguide`).

    branchwise import-pairs --run datasets/proguide --file RAG_ProGuide.json

An imported run holds pairs alone: train on it with `train-dpo` or `train-sft`.
"""

from pathlib import Path
from typing import Annotated

from branchwise.base import ConfigError, digest_of
from branchwise.runs import StageContext, StageResult, check_run_folder, open_run, read_proguide


def import_pairs(
    context: StageContext, file: Annotated[Path, "the RAG-ProGuide JSON file"]
) -> StageResult:
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
