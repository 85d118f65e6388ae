"""Supervised training on steps, for the warm start and `train-sft`.

Only the policy's own tokens have a loss, and logits are computed for those alone: on two cores the
output layer over all prompt tokens would cost a fifth of the time. Examples are packed, so that
their common instruction is read once (`training.tree_attention`), or side by side, padded on the
left.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from base.text import Log
from training.examples import StepExample, tokenise
from training.report import TrainingReport
from training.settings import TrainingKind, TrainingSettings
from training.training_run import TrainingRun, log_line


def train_on_steps(
    examples: Sequence[StepExample],
    training: TrainingSettings,
    *,
    kind: TrainingKind,
    start: str,
    target: Path,
    seed: int,
    stops: tuple[str, ...] = (),
    resume: bool = False,
    log: Log = log_line,
    data: Mapping[str, Any] | None = None,
) -> TrainingReport:
    """Trains a LoRA on `start` (merged in float32), or all its weights, and writes it to `target`.

    Args:
        examples: Examples, one per step.
        training: Settings of the block of `kind`, and those that all trainings share.
        kind: "warm-start" or "sft"; written to `training.json`.
        start: "packaged" or a model folder.
        target: Folder for the result; see `TrainingRun`.
        seed: Random seed of initialisation and order.
        stops: Strings that end a call of the examples' protocol within its turn.
        resume: Whether to keep another training's checkpoints and fail; see `TrainingRun`.
        log: Callback for progress messages.
        data: Origin of the examples, as JSON; written to `training.json`.

    Raises:
        ConfigError: If `examples` is empty, too many do not fit, or the model cannot read packed
            ones (use `training.packed: false`).
        StorageError: If `resume` is set and the target's checkpoints belong to another training.
    """
    course = TrainingRun(kind, training, start, target, seed, resume, log, data)
    model, tokenizer = course.load_start()
    from training.sft_trainer import step_trainer

    tokens = course.drop_overlong(tokenise(examples, tokenizer, stops))
    # Calls of one turn begin with each other's prompts, which packing reads once.
    together = [one.question_id for one in tokens] if stops else None
    trainer = step_trainer(model, tokenizer, tokens, course, together)
    return course.train(trainer, tokens, given=len(examples))
