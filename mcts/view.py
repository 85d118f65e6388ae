"""A tree as a networkx graph, to look at or to compute on."""

from typing import TYPE_CHECKING, Any

from mcts.tree import NO_PARENT, StateT, Tree

if TYPE_CHECKING:
    import networkx


def to_networkx(tree: Tree[StateT]) -> "networkx.DiGraph[Any]":
    """Returns directed graph from parents to children.

    Node attributes: `state`, `depth`, `terminal`, `visits`, `q` (None if no pass was scored),
    `value`, `iteration`. Node names are the ids.
    """
    import networkx

    graph = networkx.DiGraph()
    for node in tree.nodes:
        graph.add_node(
            node.id,
            state=node.state,
            depth=node.depth,
            terminal=node.terminal,
            visits=node.visits,
            q=node.value_sum / node.scored_visits if node.scored_visits else None,
            value=node.value,
            iteration=node.iteration,
        )
        if node.parent != NO_PARENT:
            graph.add_edge(node.parent, node.id)
    return graph
