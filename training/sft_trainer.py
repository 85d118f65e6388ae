"""transformers' `Trainer` on single steps, side by side or packed.

transformers takes seconds to import, so this module is imported where a training begins.
"""

from collections.abc import Sequence
from typing import Any

import torch
from peft import get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from base.seeds import to_uint32
from training.arguments import lora_config, one_device
from training.packing import IGNORED, StepTokens, enable_packed_forward, packed_batch, pad_id
from training.samplers import LengthOrder, StateOrder
from training.training_run import TrainingRun


def step_trainer(
    model: Any,
    tokenizer: Any,
    steps: Sequence[StepTokens],
    run: TrainingRun,
    together: Sequence[str] | None,
) -> Any:
    """Returns a trainer around a plain `model` (the start), with a new adapter on it if any.

    Raises:
        ConfigError: If the model cannot read packed examples, and `training.packed` is set.
    """
    pad = pad_id(tokenizer)
    arguments = TrainingArguments(**run.arguments(), include_num_input_tokens_seen="non_padding")
    one_device(arguments)
    if run.training.packed:
        enable_packed_forward(model)
    set_seed(to_uint32(run.seed))  # before the adapter, whose first weights are random
    lora = run.training.lora
    return StepTrainer(
        together=together,
        model=model if lora is None else get_peft_model(model, lora_config(lora)),
        args=arguments,
        train_dataset=steps,
        data_collator=PackedSteps(pad) if run.training.packed else LeftPadding(pad),
    )


class StepTrainer(Trainer):  # type: ignore[misc]
    """Cross-entropy, computed for the last positions only.

    Args:
        together: Key of every example; examples of one key follow each other. None orders them by
            length.
    """

    def __init__(self, *, together: Sequence[str] | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.together = together

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.together is not None:
            return StateOrder(self.together, self.args.seed)
        lengths = [len(step.whole) for step in self.train_dataset]
        batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthOrder(lengths, batch_size, self.args.seed)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Counts the tokens that the model reads: the tree's if examples are packed."""
        tree = inputs.get("tree_tokens")
        super()._track_num_input_tokens(
            inputs if tree is None else {"input_ids": tree, "attention_mask": tree * 0 + 1}
        )

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        # Only the last `last + 1` logits are computed. Padded rows are padded on the left, so
        # every target ends at the last column. Packed rows are 1 + longest step wide, so `last
        # + 1` is the whole row. In both, logits[:, :-1] predict labels[:, -last:].
        labels = inputs.pop("labels")
        last = int((labels != IGNORED).sum(dim=1).max())
        output = model(**inputs, logits_to_keep=last + 1, use_cache=False)
        losses = torch.nn.functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1).float(),
            labels[:, -last:].flatten(),
            ignore_index=IGNORED,
            reduction="none",
        )
        # Target tokens of the whole step, so that its micro-batches add up to one mean.
        items = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        loss = losses.sum() / items
        return (loss, output) if return_outputs else loss


class PackedSteps:
    """Examples as one packed batch; see `training.packing`."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, steps: Sequence[StepTokens]) -> dict[str, Any]:
        """Builds a batch with `labels` of shape (batch, 1 + longest step)."""
        batch = packed_batch(steps, self.pad)
        said = batch.pop("completion_mask")
        return batch | {"labels": batch["input_ids"].masked_fill(said == 0, IGNORED)}


class LeftPadding:
    """Examples side by side, padded on the left."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, steps: Sequence[StepTokens]) -> dict[str, Any]:
        """Returns tensors of shape (batch, longest)."""
        wholes = [step.whole for step in steps]
        longest = max(map(len, wholes))

        def padded(rows: Sequence[tuple[int, ...]], filler: int) -> Any:
            return torch.tensor([[filler] * (longest - len(row)) + list(row) for row in rows])

        return {
            "input_ids": padded(wholes, self.pad),
            "attention_mask": padded([(1,) * len(whole) for whole in wholes], 0),
            "labels": padded([step.step for step in steps], IGNORED),
        }
