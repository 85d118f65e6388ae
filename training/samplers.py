"""The order of examples: shuffles groups, and keeps the examples of a group together.

So siblings, or calls of one turn, are in one micro-batch, which reads their shared prompts once.
"""

import random
from collections.abc import Hashable, Iterator, Sequence


class StateOrder:
    """A sampler for PyTorch's loaders: indices of examples, in another order every epoch.

    Args:
        states: Group key of each example.
        seed: Seed of the order, which depends only on it and the epoch, so that a resumed training
            has the same order.
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
