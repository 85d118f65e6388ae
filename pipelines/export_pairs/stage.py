"""`make export-pairs`: the pairs of a run as RAG-ProGuide JSON (`runs.proguide`).

branchwise export-pairs --run datasets/atlas --file pairs.json
"""

from pathlib import Path
from typing import Annotated

from branchwise.runs import (
    StageContext,
    StageResult,
    existing_run,
    pairs_of,
    pairs_table,
    write_proguide,
)


def export_pairs(
    context: StageContext, file: Annotated[Path, "the RAG-ProGuide JSON file to write"]
) -> StageResult:
    """Writes the run's pairs as RAG-ProGuide JSON."""
    run = existing_run(context.run)
    pairs = pairs_of(run, pairs_table())
    if context.dry_run:
        context.log(f"export-pairs: {len(pairs)} pairs → {file}")
        return StageResult({"pairs": len(pairs), "dry_run": True})
    written = write_proguide(file, pairs)
    context.log(f"wrote {written} pairs to {file}")
    return StageResult({"pairs": written, "file": str(file)})
