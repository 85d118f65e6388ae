"""`make export`: a trained policy as merged safetensors (vLLM, transformers) and as GGUF.

    branchwise export --run datasets/atlas            # models/atlas/dpo
    branchwise export --model models/atlas/warm-start

Merged in float32; says how much of the trained change of the logits is left in each file, and
fails if it was lost to rounding.
"""

from pathlib import Path

from runs.assemble import model_folder
from runs.stage import Invocation, Outcome
from storage.enclosed import refuse_strange
from training.export import export_policy


def export(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    model = call.options.get("model") or str(model_folder(call.run, "dpo"))
    precision = call.recipe.policy.precision
    refuse_strange(Path(model))  # it is written into
    call.say(f"export: {model} as safetensors and {precision} GGUF")
    if call.dry_run:
        return Outcome({"model": model, "dry_run": True})
    report = export_policy(model, precision=precision)
    for written in report.exported:
        call.say(written.line())
    if report.left_out:
        call.say(f"no GGUF: {report.left_out}")
    return Outcome(report.totals())
