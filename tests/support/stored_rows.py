"""Reads the nodes and the pairs of a run, and the results of queries on it."""

from itertools import chain
from pathlib import Path

from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.storage.views import QueryResult, connect, query
from branchwise.types import Pair, TreeNode


def nodes_of(run: Path, table: str = "trees") -> list[TreeNode]:
    """Returns the nodes of a run or a relabelling, in order of tree and id."""
    nodes = table_to_records(read_parts(run, table), TreeNode)
    return sorted(nodes, key=lambda node: (node.tree_id, node.node_id))


def pairs_of(run: Path, table: str = "pairs") -> list[Pair]:
    """Returns the pairs of a run or a relabelling, in order of tree and nodes."""
    pairs = table_to_records(read_parts(run, table), Pair)
    return sorted(pairs, key=lambda pair: (pair.tree_id, pair.chosen_node, pair.rejected_node))


def run_sql(run: Path, sql: str) -> QueryResult:
    """Runs one query on a run's views and returns all rows."""
    with connect(run) as connection:
        parts = list(query(connection, run, sql))
    return QueryResult(parts[0].columns, tuple(chain.from_iterable(part.rows for part in parts)))
