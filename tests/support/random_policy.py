"""A random policy for tests of the tree search, which needs no language model."""

import random
from collections import Counter

from branchwise.mcts import Expansion, Node, Tree


class Wanderer:
    """Policy with a few actions, of which the first is the most frequent.

    Every draw depends only on the seed, the node and the draw number. All paths end. Nodes whose id
    is a multiple of 3 get no score.

    Args:
        seed: Seed of all draws.
        actions: Number of actions.
        scale, shift: Applied to the values, which are in [0, 1) without them.
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
    """Returns the fields of all nodes as values that can be compared."""
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
