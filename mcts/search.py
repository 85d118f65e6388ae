"""Monte Carlo tree search over reasoning steps: ReasonRAG section 2.2.2 and appendix A.

A simulation walks down to the first state that may still get a child (`select_leaf`), draws one
child and evaluates it once (`draw_step`), and adds the value to everything on the way back up
(`Tree.back_up`). Within a question this is sequential, so the same draws give the same tree;
callers keep many questions in flight instead. The search draws no random numbers of its own: ties
go to the lower id and every draw is numbered.

If the paper leaves a detail open, or its code stalls:
- a node is evaluated once; a later pass that ends there adds the same value again, or only a
  visit if the node is unscored, so a terminal child that is selected again never stalls a tree;
- a child equal to a sibling is drawn once more. A second duplicate adds no node: it uses one of
  `max_children` and counts as a visit to the sibling, so a policy that barely varies still gets
  deep trees. Playout steps are not redrawn: a duplicate continues from the sibling, which may then
  get more than `max_children` children;
- the search ends early when no state is left that may get a child
  (`TreeSettings.stop_when_exhausted`).
"""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic

from .selection import SCORES, Score, select_child
from .settings import TreeSettings
from .tree import Node, StateT, Tree


@dataclass(frozen=True, slots=True)
class Expansion(Generic[StateT]):
    """A drawn child: its state, whether it is terminal, and its key for duplicates."""

    state: StateT
    terminal: bool
    key: Hashable


Expand = Callable[[Node[StateT], int], Awaitable[Expansion[StateT]]]
"""(node, draw number) → drawn child, neither added to the tree nor evaluated."""
Evaluate = Callable[[Node[StateT]], Awaitable[float | None]]
"""node → value, or None if it cannot be scored; called once per node. In [0, 1], or
`TreeSettings.normalise` has to be set."""
KeepGoing = Callable[[], bool]
"""Called before every iteration: returns whether it may start."""


async def search(
    root: StateT,
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    settings: TreeSettings,
    keep_going: KeepGoing = lambda: True,
) -> Tree[StateT]:
    """Grows a tree from `root` with `settings.iterations` simulations.

    Ends earlier if the tree is exhausted, unless `settings.stop_when_exhausted` is False.

    Args:
        root: State to start from; it is not evaluated.
        expand: Draws one child of a node. An exception ends the search.
        evaluate: Values a new node; with playouts, called for terminal nodes only.
        settings: Iterations, children, selection and exploration weight.
        keep_going: Called before every possible simulation; the first False ends the
            search.

    Returns:
        The tree with visits, values and draw counts.
    """
    tree = Tree.grow_from(root)
    score = SCORES[settings.selection]
    evaluate_node = terminal_only(evaluate) if settings.evaluator == "playout" else evaluate
    for iteration in range(1, settings.iterations + 1):
        if settings.stop_when_exhausted and is_exhausted(tree, tree.root, settings.max_children):
            break
        if not keep_going():
            break
        leaf = select_leaf(tree, score, settings)
        if not leaf.terminal:
            leaf = await draw_step(tree, leaf, expand, evaluate_node, iteration, attempts=2)
            if settings.evaluator == "playout":
                leaf = await play_out(tree, leaf, expand, evaluate_node, iteration)
        tree.back_up(leaf)
    return tree


def select_leaf(tree: Tree[StateT], score: Score, settings: TreeSettings) -> Node[StateT]:
    """Returns the first node on the way down that is terminal or may still get a child."""
    node = tree.root
    while not node.terminal and is_full(node, settings.max_children):
        node = select_child(tree, node, score, settings.c, normalise=settings.normalise)
    return node


async def draw_step(
    tree: Tree[StateT],
    parent: Node[StateT],
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    iteration: int,
    attempts: int = 1,
) -> Node[StateT]:
    """Returns the child that a draw at `parent` leads to: a new, evaluated one, or the sibling that
    it equals.

    Args:
        attempts: Draws in a row before a sibling is accepted. Every draw at a node has its own
            number, from 0.
    """
    siblings = {child.key: child for child in tree.children(parent)}
    for _ in range(attempts):
        # The number is used up even if the draw repeats a sibling, because it is part of the call's
        # identity in the ledger: the same number would replay the same reply.
        draw = parent.draws
        parent.draws += 1
        expansion = await expand(parent, draw)
        if expansion.key not in siblings:
            child = tree.add_child(
                parent, expansion.state, terminal=expansion.terminal, key=expansion.key, draw=draw
            )
            child.iteration = iteration
            child.value = await evaluate(child)
            return child
    parent.duplicates += 1
    return siblings[expansion.key]


async def play_out(
    tree: Tree[StateT],
    node: Node[StateT],
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    iteration: int,
) -> Node[StateT]:
    """Returns the leaf that a trajectory from `node` ends in, one draw per step; its steps become
    nodes.
    """
    while not node.terminal:
        node = await draw_step(tree, node, expand, evaluate, iteration)
    return node


def terminal_only(evaluate: Evaluate[StateT]) -> Evaluate[StateT]:
    """Wraps `evaluate` so that nodes that are not terminal stay unscored."""

    async def evaluate_node(node: Node[StateT]) -> float | None:
        return await evaluate(node) if node.terminal else None

    return evaluate_node


def is_full(node: Node[StateT], max_children: int) -> bool:
    """Returns whether a node gets no further child; a folded duplicate takes up a place."""
    return len(node.children) + node.duplicates >= max_children


def is_exhausted(tree: Tree[StateT], node: Node[StateT], max_children: int) -> bool:
    """Returns whether no state at or below `node` may still get a child."""
    if node.terminal:
        return True
    return is_full(node, max_children) and all(
        is_exhausted(tree, child, max_children) for child in tree.children(node)
    )
