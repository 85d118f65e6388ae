"""A policy for searches that know no language: where it goes depends on a seed and a name."""

import random
from collections import Counter

from mcts import Expansion, Node, Tree


class Wanderer:
    """A policy of a few actions, most often the first, that ends somewhere; every third leaf is
    unscored. What it draws depends on the seed, the node and the draw number alone.

    Args:
        scale, shift: of the values, which else lie in [0, 1).
    """

    def __init__(self, seed: int, actions: int, *, scale: float = 1.0, shift: float = 0.0) -> None:
        self.seed, self.actions = seed, actions
        self.scale, self.shift = scale, shift
        self.drawn: Counter[tuple[str, int]] = Counter()
        self.evaluated: list[str] = []

    async def expand(self, node: Node[str], draw: int) -> Expansion[str]:
        self.drawn[node.path, draw] += 1
        dice = random.Random(f"{self.seed}:{node.path}:{draw}")
        key = min(dice.randrange(self.actions), dice.randrange(self.actions))
        last = node.depth >= 4 or (key + node.depth) % 3 == 2
        return Expansion(f"{node.state}{key}", last, key)

    async def evaluate(self, node: Node[str]) -> float | None:
        self.evaluated.append(node.path)
        if node.id % 3 == 0:
            return None
        return self.scale * (int(node.state) % 7 / 7) + self.shift


def facts(tree: Tree[str]) -> list[tuple[object, ...]]:
    """All that a node of the tree is, as values that can be compared."""
    return [
        (
            n.path,
            n.state,
            n.visits,
            n.scored_visits,
            n.value_sum,
            n.draws,
            n.duplicates,
            n.iteration,
        )
        for n in tree.nodes
    ]
