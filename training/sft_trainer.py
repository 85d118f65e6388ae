"""transformers' `Trainer` on single steps, side by side or packed.

transformers takes seconds to import, so this module is imported when a training begins.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from .packing import IGNORED, StepTokens, labelled, packed_batch, padded_batch
from .samplers import ExampleOrder
from .warm_up import WarmUpTrainer


class StepTrainer(WarmUpTrainer):
    """Cross-entropy, computed for the last positions only.

    Args:
        packed: Whether batches are packed (`training.packing`).
        pad: Token id that fills batches.
        together: Key of every example; examples of one key follow each other. None orders them by
            length.
    """

    def __init__(
        self, *, packed: bool, pad: int, together: Sequence[str] | None, **kwargs: Any
    ) -> None:
        super().__init__(data_collator=partial(step_batch, pad, packed), **kwargs)
        self.together = together

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        lengths = [len(step.whole) for step in self.train_dataset]
        return ExampleOrder(self.args, lengths, self.together)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Counts the tokens that the model reads: the tree's if examples are packed."""
        tree = inputs.get("tree_tokens")
        super()._track_num_input_tokens(
            inputs if tree is None else {"input_ids": tree, "attention_mask": tree * 0 + 1}
        )

    def compute_loss(
        self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None
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
        return losses.sum() / items


def step_batch(pad: int, packed: bool, steps: Sequence[StepTokens]) -> dict[str, Any]:
    """Returns a batch with `labels`, packed or padded on the left (see `StepTrainer`)."""
    return labelled(packed_batch(steps, pad) if packed else padded_batch(steps, pad, "left"))
