"""Which child a simulation descends to."""

import math
from collections.abc import Callable

from .tree import Node, StateT, Tree

Score = Callable[[float, int, int, int, float], float]
"""(Q of the child, its visits, visits of all siblings, visits of the parent, c) → score."""


def puct(q: float, visits: int, sibling_visits: int, parent_visits: int, c: float) -> float:
    """Q + c · √(Σ N_siblings) / (1 + N): ReasonRAG eq. 5. The sum is over the siblings compared."""
    return q + c * math.sqrt(sibling_visits) / (1 + visits)


def uct(q: float, visits: int, sibling_visits: int, parent_visits: int, c: float) -> float:
    """Q + c · √(ln N_parent / N): ReasonRAG's published code; an unvisited child comes first."""
    if visits == 0:
        return math.inf
    return q + c * math.sqrt(math.log(max(parent_visits, 1)) / visits)


SCORES: dict[str, Score] = {"puct": puct, "uct": uct}


def select_child(
    tree: Tree[StateT], node: Node[StateT], score: Score, c: float, *, normalise: bool = False
) -> Node[StateT]:
    """Returns the child with the highest score; of equal ones the one created first.

    Args:
        normalise: see `TreeSettings`.
    """
    children = tree.children(node)
    sibling_visits = sum(child.visits for child in children)

    def scored(child: Node[StateT]) -> float:
        q = tree.normalised_q(tree.q(child)) if normalise else tree.q(child)
        return score(q, child.visits, sibling_visits, node.visits, c)

    return max(children, key=scored)  # the first of equal ones
