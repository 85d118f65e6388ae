"""Reads the nodes and the pairs of a run."""

from pathlib import Path

from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Pair, TreeNode


def nodes_of(run: Path, table: str = "trees") -> list[TreeNode]:
    """Returns the nodes of a run or a relabelling, in order of tree and id."""
    nodes = table_to_records(read_parts(run, table), TreeNode)
    return sorted(nodes, key=lambda node: (node.tree_id, node.node_id))


def pairs_of(run: Path, table: str = "pairs") -> list[Pair]:
    """Returns the pairs of a run or a relabelling, in order of tree and nodes."""
    pairs = table_to_records(read_parts(run, table), Pair)
    return sorted(pairs, key=lambda pair: (pair.tree_id, pair.chosen_node, pair.rejected_node))
