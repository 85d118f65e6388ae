"""The stored tree of a question as a networkx graph."""

from pathlib import Path
from typing import Any

import networkx

from base.errors import ConfigError
from storage.views import connect, rows_of


def tree_graph(run: Path, question_id: str) -> "networkx.DiGraph[Any]":
    """Returns the tree of a question, with edges from parents to children.

    Nodes are the `node_id`s (root 0); their attributes are the columns of `trees` (docs/tables.md).

    Raises:
        ConfigError: If the run has no such tree.
        StorageError: If a part of the run is missing or damaged.
    """
    with connect(run) as connection:
        sql = "SELECT * FROM trees WHERE question_id = ? ORDER BY node_id"
        rows = rows_of(connection, sql, question_id)
    if not rows:
        raise ConfigError(f"{run}: no tree of question {question_id!r}")
    graph: networkx.DiGraph[Any] = networkx.DiGraph()
    graph.add_nodes_from((row["node_id"], row) for row in rows)
    graph.add_edges_from((row["parent_id"], row["node_id"]) for row in rows if row["node_id"])
    return graph
