"""`make export`: a trained policy as merged safetensors (vLLM, transformers) and as GGUF.

    branchwise export --run datasets/atlas            # models/atlas/dpo
    branchwise export --model models/atlas/warm-start

Merges in float32, reports the share of the trained change of the logits in each file, and fails if
rounding lost it.
"""

from pathlib import Path
from typing import Annotated

from branchwise.base import reject_special_files
from branchwise.runs import StageContext, StageResult, model_folder
from branchwise.training import export_policy


def export(
    context: StageContext,
    model: Annotated[str | None, "model folder; default models/<run>/dpo"] = None,
) -> StageResult:
    """Runs the stage (see module)."""
    model = model or str(model_folder(context.run, "dpo"))
    precision = context.recipe.policy.precision
    reject_special_files(Path(model))  # it is written into
    context.log(f"export: {model} as safetensors and {precision} GGUF")
    if context.dry_run:
        return StageResult({"model": model, "dry_run": True})
    report = export_policy(model, precision=precision, log=context.log)
    for written in report.exported:
        context.log(written.line())
    return StageResult(report.totals())
