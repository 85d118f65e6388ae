"""Supervised training on steps, for the warm start and `train-sft`.

Only the policy's own tokens have a loss, and logits are computed for those alone: on two cores the
output layer over all prompt tokens would cost a fifth of the time. Examples are packed, so that
their common instruction is read once (`training.packing`), or side by side, padded on the left.
"""

from collections.abc import Sequence

from branchwise.base import to_uint32

from .arguments import lora_config
from .examples import StepExample, tokenise
from .packing import pad_id
from .training_run import TrainingReport, TrainingRun


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
    from peft import get_peft_model
    from transformers import TrainingArguments, set_seed

    from .sft_trainer import StepTrainer

    steps = tokenise(examples, tokenizer, stops)
    fitting = run.fitting([len(step.whole) for step in steps])
    steps = [steps[i] for i in fitting]
    questions = [examples[i].question_id for i in fitting]
    set_seed(to_uint32(run.seed))  # before the adapter, whose first weights are random
    if run.training.lora is not None:
        model = get_peft_model(model, lora_config(run.training.lora))
    trainer = StepTrainer(
        packed=run.training.packed,
        pad=pad_id(tokenizer),
        # Calls of one turn begin with each other's prompts, which packing reads once.
        together=questions if stops else None,
        model=model,
        args=run.configuration(TrainingArguments, include_num_input_tokens_seen="non_padding"),
        train_dataset=steps,
    )
    trained = list(zip(steps, questions, strict=True))
    return run.train(trainer, trained, before_filtering=len(examples))
