"""`make export`: a trained policy as merged safetensors (vLLM, transformers) and as GGUF.

    branchwise export --run datasets/atlas            # models/atlas/dpo
    branchwise export --model models/atlas/warm-start

Merged in float32; says how much of the trained change of the logits is left in each file, and
fails if it was lost to rounding.
"""

from dataclasses import asdict

from pipelines.assemble import model_folder
from pipelines.stage import Invocation, Outcome
from training.export import export_policy


def export(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    model = call.options.get("model") or str(model_folder(call.run, "dpo"))
    precision = call.recipe.policy.precision
    call.say(f"export: {model} as safetensors and {precision} GGUF")
    if call.dry_run:
        return Outcome({"model": model, "dry_run": True})
    report = export_policy(model, precision=precision)
    for name, kept in (("gguf", report.gguf_survival), ("safetensors", report.merged_survival)):
        call.say(
            f"{name}: the trained change of the logits survives with correlation "
            f"{kept.correlation:.4f}, relative error {kept.relative_error:.4f}"
        )
    call.say(f"wrote {report.merged} and {report.gguf}")
    return Outcome({key: str(value) for key, value in asdict(report).items()})
