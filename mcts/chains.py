"""Independent chains: the comparison for a tree search, at an equal budget.

Every iteration samples one whole trajectory from the root, one draw per step, as if the policy were
asked the question once more. A step that equals an existing sibling (`Expansion.key`, the tree
search's own rule) continues from that sibling, so the chains become a prefix tree, which is stored,
labelled and paired as any other. As in `mcts.search`, every draw at a node has a number of its
own, and the same draws give the same tree.

How it differs from the tree search:
- no state is selected: one is visited as often as the policy goes there, and may get as many
  children as there are chains (`max_children` bounds nothing here);
- no inner node is evaluated; every chain backs up the value of the leaf that it ended in;
- a repeated step is not redrawn, which would make rare steps too frequent;
- it never ends early: identical chains show a policy without variety.

With `branches` (EVO-RAG section 3.3: two trajectory branches a visited state), every state of the
chains is then drawn from until it has so many children, each followed to its end. Such a pass
begins at that state and counts below it only: visits of siblings stay in the proportion in which
the policy goes there. Counted up to the root, a branched chain would outweigh an unbranched one
by its length, and means over visits would believe every episode to be longer than it is.
"""

from mcts.search import (
    Evaluate,
    Expand,
    KeepGoing,
    always,
    play_out,
    take_step,
    terminal_only,
)
from mcts.settings import SearchSettings
from mcts.tree import Node, StateT, Tree


async def sample_chains(
    root: StateT,
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    settings: SearchSettings,
    keep_going: KeepGoing = always,
) -> Tree[StateT]:
    """Samples `settings.iterations` chains from `root`, as a prefix tree.

    Args:
        root: the state to start from; not terminal.
        expand: draws one child of a node; has to come to a terminal one in the end. What it
            raises ends the sampling.
        evaluate: values a new leaf; called for no other node.
        settings: iterations and branches; the rest concerns the tree search.
        keep_going: Called before every chain and branch; the first False ends the sampling.

    Returns:
        The tree with visits, values and draw counts; `duplicates` of a node are the draws that
        joined one of its children, so its draws are its children and its duplicates, and the
        visits of its children.
    """
    tree, evaluate_node = Tree.grow_from(root), terminal_only(evaluate)
    for iteration in range(1, settings.iterations + 1):
        if not keep_going():
            return tree
        tree.back_up(await play_out(tree, tree.root, expand, evaluate_node, iteration))
    for node in [node for node in tree.nodes if not node.terminal]:
        while needs_branch(node, settings.branches):
            if not keep_going():
                return tree
            step = await take_step(tree, node, expand, evaluate_node, iteration + 1)
            leaf = await play_out(tree, step, expand, evaluate_node, iteration + 1)
            tree.back_up(leaf, stop_at=node.id)
    return tree


def needs_branch(node: Node[StateT], branches: int) -> bool:
    """Returns whether a visited state gets another draw.

    It has too few children; one that gives the same over and over is left alone.
    """
    return len(node.children) < branches and node.draws < 2 * branches
