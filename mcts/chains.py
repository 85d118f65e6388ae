"""Independent chains: the comparison for a tree search, at an equal budget.

Every iteration samples one trajectory from the root, one draw per step. A step that equals an
existing sibling (`Expansion.key`, as in the tree search) continues from that sibling, so the chains
form a prefix tree, which is stored, labelled and paired like any other. As in `mcts.search`, the
draws at a node are numbered, and the same draws give the same tree.

Differences from the tree search:
- No state is selected. A state gets as many visits as the policy makes, and up to one child per
  chain (`max_children` does not apply).
- No inner node is evaluated; every chain backs up the value of its leaf.
- A repeated step is not redrawn, because that would make rare steps too frequent.
- It never ends early: identical chains show that a policy has no variety.

With `branches` (EVO-RAG section 3.3: two trajectory branches per visited state), every state of the
chains gets further draws until it has that many children, each completed to its end. A branch adds
visits only below the state at which it begins. If it were counted up to the root, long chains,
which have more branches, would weigh more.
"""

from .search import Evaluate, Expand, KeepGoing, draw_step, play_out, terminal_only
from .settings import ChainSettings
from .tree import StateT, Tree


async def sample_chains(
    root: StateT,
    expand: Expand[StateT],
    evaluate: Evaluate[StateT],
    settings: ChainSettings,
    keep_going: KeepGoing = lambda: True,
) -> Tree[StateT]:
    """Samples `settings.iterations` chains from `root`, as a prefix tree.

    Args:
        root: Start state; not terminal.
        expand: Draws one child of a node; must reach a terminal state eventually. An exception
            ends the sampling.
        evaluate: Values a new leaf; not called for other nodes.
        settings: Iterations and branches.
        keep_going: Called before every chain and branch; the first False ends the sampling.

    Returns:
        The tree with visits, values and draw counts. `duplicates` of a node counts the draws that
        equalled one of its children.
    """
    tree, evaluate_node = Tree.grow_from(root), terminal_only(evaluate)
    for iteration in range(1, settings.iterations + 1):
        if not keep_going():
            return tree
        tree.back_up(await play_out(tree, tree.root, expand, evaluate_node, iteration))
    # A copy of the list: the steps of branches are appended to it, and get no branches themselves.
    for node in [node for node in tree.nodes if not node.terminal]:
        # A state that gives the same child over and over is left alone.
        while len(node.children) < settings.branches and node.draws < 2 * settings.branches:
            if not keep_going():
                return tree
            step = await draw_step(tree, node, expand, evaluate_node, iteration + 1)
            leaf = await play_out(tree, step, expand, evaluate_node, iteration + 1)
            tree.back_up(leaf, stop_at=node.id)
    return tree
