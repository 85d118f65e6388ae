"""The order of examples, which depends only on the seed and the epoch.

So a training that resumes within an epoch has the same order. The samplers of transformers draw
from PyTorch's global state, which is restored only after the epoch's order was drawn.
"""

import random
from collections.abc import Hashable, Iterator, Sequence


class StateOrder:
    """A sampler for PyTorch's loaders: shuffles groups, and keeps the examples of a group together.

    So siblings, or calls of one turn, are in one micro-batch, which reads their shared prompts
    once.

    Args:
        states: Group key of each example.
        seed: Seed of the order.
    """

    def __init__(self, states: Sequence[Hashable], seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        groups: dict[Hashable, list[int]] = {}
        for index, state in enumerate(states):
            groups.setdefault(state, []).append(index)
        self.groups = list(groups.values())

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch; the loader calls it before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self.seed}:{self.epoch}")
        for group in rng.sample(self.groups, len(self.groups)):
            yield from rng.sample(group, len(group))


class LengthOrder:
    """A sampler for PyTorch's loaders: shuffles examples, and batches those of similar length.

    Args:
        lengths: Length of each example, in tokens.
        batch_size: Examples per optimiser step.
        seed: Seed of the order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = list(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch; the loader calls it before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        import torch
        from transformers.trainer_pt_utils import get_length_grouped_indices

        seed = random.Random(f"{self.seed}:{self.epoch}").getrandbits(63)
        generator = torch.Generator().manual_seed(seed)
        yield from get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
