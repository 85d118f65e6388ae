"""The tables of a run, for Python code of users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from branchwise.storage import sql_table, tree_graph, view_table

from .annotated_trees import check_relabelling
from .folder import existing_run
from .recipe import Recipe

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class StoredRun:
    """A run folder and its tables (docs/tables.md).

    A table has the rows that are committed when it is read, in the order of the parts.

    Attributes:
        recipe: Recipe of the latest annotation.
        totals: Totals of the call that returned this object; the cost estimate after a dry run.
    """

    folder: Path
    recipe: Recipe = field(repr=False)
    totals: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def pairs(self, label: str | None = None) -> pa.Table:
        """Returns the preference pairs, of the run itself or of a relabelling."""
        return self._table("pairs", label)

    def trees(self, label: str | None = None) -> pa.Table:
        """Returns the nodes of all trees, with the labels of the run or of a relabelling."""
        return self._table("trees", label)

    def questions(self) -> pa.Table:
        """Returns the annotated questions."""
        return self._table("questions")

    def predictions(self) -> pa.Table:
        """Returns the predictions of all evaluations and policies."""
        return self._table("predictions")

    def failures(self) -> pa.Table:
        """Returns the questions that failed, with the reasons."""
        return self._table("failures")

    def tree(self, question_id: str, label: str | None = None) -> "networkx.DiGraph[Any]":
        """Returns the tree of a question: nodes by `node_id` (root 0), with the columns of `trees`.

        Raises:
            ConfigError: If the run has no such tree.
        """
        self._check(label)
        return tree_graph(self.folder, question_id, label)

    def sql(self, query: str, label: str | None = None) -> pa.Table:
        """Returns the result of a DuckDB query on the tables.

        Raises:
            ConfigError: If DuckDB refused the query.
        """
        self._check(label)
        return sql_table(self.folder, query, label)

    def _table(self, name: str, label: str | None = None) -> pa.Table:
        self._check(label)
        return view_table(self.folder, name, label)

    def _check(self, label: str | None) -> None:
        check_relabelling(existing_run(self.folder), label)
