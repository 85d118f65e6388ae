"""Independent chains: what a tree search is compared with, at whatever budget both are given.

Every iteration samples one whole trajectory from the root, one draw a step, as if the policy were
asked the question once more. A step that equals an existing sibling (`Expansion.key`, the tree
search's own rule) goes on from that sibling, so the chains become a prefix tree, which is stored,
labelled and paired as any other. As in `mcts.search`, every draw at a node has a number of its
own, and the same draws give the same tree.

How it differs from the tree search:
- no state is selected: one is visited as often as the policy goes there, and may get as many
  children as there are chains (`max_children` bounds nothing here);
- no inner node is evaluated; every chain backs up the value of the leaf that it ended in;
- a repeated step is not drawn again, which would make rare steps more frequent than they are;
- it never ends early: chains that all say the same are what a policy without variety gives.
"""

from mcts.search import Evaluate, Expand, KeepGoing, add_drawn, always, backward, draw_child
from mcts.settings import SearchSettings
from mcts.tree import Node, StateT, Tree


async def sample_chains(
    root: StateT,
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    settings: SearchSettings,
    keep_going: KeepGoing = always,
) -> Tree[StateT]:
    """Sample `settings.iterations` chains from `root`, as a prefix tree.

    Args:
        root: the state to start from; not terminal.
        expand: draws one child of a node; has to come to a terminal one in the end. What it
            raises ends the sampling.
        evaluate: values a new leaf in [0, 1]; called for no other node.
        settings: iterations; the rest concerns the tree search.
        keep_going: asked before every chain; the first no ends the sampling.

    Returns:
        The tree with visits, values and draw counts; `duplicates` of a node are the draws that
        joined one of its children, so its visits are its children and its duplicates.
    """
    tree = Tree.grow_from(root)
    for iteration in range(1, settings.iterations + 1):
        if not keep_going():
            break
        backward(tree, await sample_chain(tree, expand, evaluate, iteration))
    return tree


async def sample_chain(
    tree: Tree[StateT], expand: Expand[StateT], evaluate: Evaluate[StateT], iteration: int
) -> Node[StateT]:
    """The leaf that a new trajectory from the root ends in."""
    node = tree.root
    while not node.terminal:
        node = await take_step(tree, node, expand, evaluate, iteration)
    return node


async def take_step(
    tree: Tree[StateT],
    parent: Node[StateT],
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    iteration: int,
) -> Node[StateT]:
    """The child that a draw at `parent` leads to: a new one, or the sibling that it equals."""
    expansion, draw = await draw_child(parent, expand)
    for child in tree.children(parent):
        if child.key == expansion.key:
            parent.duplicates += 1
            return child
    child = add_drawn(tree, parent, expansion, draw, iteration)
    if child.terminal:
        child.value = await evaluate(child)
    return child
