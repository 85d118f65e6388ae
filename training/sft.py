"""Supervised training on steps, for the warm start and `train-sft`.

Only the policy's own tokens have a loss, and logits are computed for those alone: on two cores the
output layer over all prompt tokens would cost a fifth of the time. Examples are packed, so that
their common instruction is read once (`training.packing`), or side by side, padded on the left.
"""

from collections.abc import Sequence

from training.examples import StepExample, tokenise
from training.report import TrainingReport
from training.training_run import TrainingRun


def train_on_steps(
    run: TrainingRun, examples: Sequence[StepExample], *, stops: tuple[str, ...] = ()
) -> TrainingReport:
    """Trains a LoRA on the start (merged in float32), or all weights, and writes it to the target.

    Args:
        run: Start, settings and target folder; of the kind "warm-start" or "sft".
        examples: Examples, one per step.
        stops: Strings that end a call of the examples' protocol within its turn.

    Raises:
        ConfigError: If `examples` is empty, too many do not fit, or the model cannot read packed
            ones (use `training.packed: false`).
        StorageError: See `TrainingRun.train`.
    """
    model, tokenizer = run.load_start()
    from training.sft_trainer import step_trainer

    steps = tokenise(examples, tokenizer, stops)
    fitting = run.fitting([len(step.whole) for step in steps])
    steps = [steps[i] for i in fitting]
    questions = [examples[i].question_id for i in fitting]
    # Calls of one turn begin with each other's prompts, which packing reads once.
    trainer = step_trainer(model, tokenizer, steps, run, questions if stops else None)
    return run.train(trainer, list(zip(steps, questions, strict=True)), given=len(examples))
