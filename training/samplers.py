"""The order of examples, which depends only on the seed and the epoch.

So a training that resumes within an epoch has the same order. The samplers of transformers draw
from PyTorch's global state, which is restored only after the epoch's order was drawn.
"""

import random
from collections.abc import Hashable, Iterator, Sequence
from typing import Any


class ExampleOrder:
    """A sampler for PyTorch's loaders.

    Args:
        arguments: The trainer's `TrainingArguments`, with the seed and the batch size.
        lengths: Length of each example, in tokens.
        states: Group key of each example. Groups are shuffled, and the examples of a group stay
            together. So siblings, or calls of one turn, are in one micro-batch, which reads their
            shared prompts once. None: batches examples of similar length.
    """

    def __init__(
        self, arguments: Any, lengths: Sequence[int], states: Sequence[Hashable] | None = None
    ) -> None:
        self.arguments = arguments
        self.lengths = list(lengths)
        self.states = states
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch; the loader calls it before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self.arguments.seed}:{self.epoch}")
        if self.states is None:
            import torch
            from transformers.trainer_pt_utils import get_length_grouped_indices

            batch = self.arguments.train_batch_size * self.arguments.gradient_accumulation_steps
            generator = torch.Generator().manual_seed(rng.getrandbits(63))
            yield from get_length_grouped_indices(self.lengths, batch, generator=generator)
            return
        groups: dict[Hashable, list[int]] = {}
        for index, state in enumerate(self.states):
            groups.setdefault(state, []).append(index)
        for group in rng.sample(list(groups.values()), len(groups)):
            yield from rng.sample(group, len(group))
