"""The tree that a search grows: nodes with their visits and values, and nothing about language."""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

StateT = TypeVar("StateT")

ROOT = 0
NO_PARENT = -1
NEUTRAL_Q = 0.5
"""Q without information: no scored pass at the root yet, or all values seen are equal."""


@dataclass(slots=True)
class Node(Generic[StateT]):
    """One state in the tree.

    Attributes:
        id: number in order of creation; the root is 0.
        parent: id of the parent, `NO_PARENT` for the root.
        depth: policy calls from the root.
        path: draw numbers that led here, from the root ("" for the root); names the node the
            same way in every run with the same draws.
        key: Key for duplicates; equal siblings are merged.
        visits: N, passes through or ending at this node.
        scored_visits: M, those passes that carried a value.
        value_sum: W, sum of those values.
        value: the node's own evaluation, or None if it could not be scored.
        draws: how many children were drawn so far (repeats included).
        duplicates: how many of them ended as visit weight on an existing child.
        iteration: the simulation or chain that created the node, from 1; 0 for the root.
    """

    id: int
    parent: int
    depth: int
    path: str
    state: StateT
    terminal: bool = False
    key: Hashable = None
    children: list[int] = field(default_factory=list)
    visits: int = 0
    scored_visits: int = 0
    value_sum: float = 0.0
    value: float | None = None
    draws: int = 0
    duplicates: int = 0
    iteration: int = 0


@dataclass(slots=True)
class Tree(Generic[StateT]):
    """Nodes by id, root first.

    `lowest` and `highest` are the ends of the values backed up so far.
    """

    nodes: list[Node[StateT]]
    lowest: float = math.inf
    highest: float = -math.inf

    @classmethod
    def grow_from(cls, root: StateT) -> "Tree[StateT]":
        """Returns a tree that holds only its root."""
        return cls([Node(id=ROOT, parent=NO_PARENT, depth=0, path="", state=root)])

    @property
    def root(self) -> Node[StateT]:
        return self.nodes[ROOT]

    @property
    def duplicates(self) -> int:
        """Draws that became visit weight on a sibling."""
        return sum(node.duplicates for node in self.nodes)

    def children(self, node: Node[StateT]) -> list[Node[StateT]]:
        """Returns the children in order of creation."""
        return [self.nodes[i] for i in node.children]

    def lineage(self, node: Node[StateT]) -> Iterator[Node[StateT]]:
        """Yields the node, its parent, … up to the root."""
        yield node
        while node.parent != NO_PARENT:
            node = self.nodes[node.parent]
            yield node

    def q(self, node: Node[StateT]) -> float:
        """Q = W/M; if no pass was scored, the parent's Q, and `NEUTRAL_Q` at the root."""
        for ancestor in self.lineage(node):
            if ancestor.scored_visits:
                return ancestor.value_sum / ancestor.scored_visits
        return NEUTRAL_Q

    def back_up(self, leaf: Node[StateT], stop_at: int = NO_PARENT) -> None:
        """Records a pass that ended at `leaf`: N + 1 up to the root; W and M if the leaf has a
        value.

        Args:
            stop_at: Id of the ancestor at which the update stops; it and its ancestors are not
                updated.
        """
        for node in self.lineage(leaf):
            if node.id == stop_at:
                break
            # A pass without a value still counts: its visit lowers the exploration term, so the
            # search does not repeat it forever.
            node.visits += 1
            if leaf.value is not None:
                node.scored_visits += 1
                node.value_sum += leaf.value
        if leaf.value is not None:
            self.lowest, self.highest = min(self.lowest, leaf.value), max(self.highest, leaf.value)

    def normalised_q(self, q: float) -> float:
        """Returns `q` rescaled to the range of values seen, in [0, 1]."""
        if self.lowest >= self.highest:
            return NEUTRAL_Q
        return (q - self.lowest) / (self.highest - self.lowest)

    def add_child(
        self, parent: Node[StateT], state: StateT, *, terminal: bool, key: Hashable, draw: int
    ) -> Node[StateT]:
        """Appends a new node below `parent`."""
        path = f"{parent.path}/{draw}" if parent.path else str(draw)
        child = Node(
            id=len(self.nodes),
            parent=parent.id,
            depth=parent.depth + 1,
            path=path,
            state=state,
            terminal=terminal,
            key=key,
        )
        self.nodes.append(child)
        parent.children.append(child.id)
        return child
