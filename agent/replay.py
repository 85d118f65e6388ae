"""States rebuilt from stored steps, so that a tree can be read again without a model."""

from collections.abc import Mapping, Sequence
from typing import get_args

from agent.protocol import AgentProtocol
from agent.state import Action, ActionKind, State, Step
from storage.errors import StorageError
from storage.records import NO_PARENT, Passage, RetrievedPassage, TreeNode


def replay_tree(
    question: str,
    nodes: Sequence[TreeNode],
    passages: Mapping[str, Passage],
    protocol: AgentProtocol,
) -> list[State]:
    """The state of every node of a stored tree, in order of node id.

    Args:
        question: the question's text.
        nodes: all nodes of one tree, in order of `node_id`.
        passages: the corpus by id; rows keep references only.
        protocol: decides the stage after each action.

    Raises:
        StorageError: a row has no parent before it, or cites a passage that the corpus lacks.
    """
    states: dict[int, State] = {}
    for node in nodes:
        if node.parent_id == NO_PARENT:
            states[node.node_id] = State(question)
            continue
        if node.parent_id not in states:
            raise StorageError(
                f"tree {node.tree_id}, node {node.node_id}: its parent {node.parent_id} does not "
                "come before it; restore the run's trees (`branchwise verify`)"
            )
        parent = states[node.parent_id]
        action = Action(_kind(node), node.content)
        step = Step(parent.stage, node.text, action, node.forced, _retrieved(node, passages))
        states[node.node_id] = parent.after(step, protocol.next_stage(parent, action))
    return [states[node.node_id] for node in nodes]


def _kind(node: TreeNode) -> ActionKind:
    kinds: tuple[ActionKind, ...] = get_args(ActionKind)
    for kind in kinds:
        if kind == node.action:
            return kind
    raise StorageError(f"tree {node.tree_id}, node {node.node_id}: no action `{node.action}`")


def _retrieved(node: TreeNode, passages: Mapping[str, Passage]) -> tuple[RetrievedPassage, ...]:
    found = []
    for reference in node.passages:
        passage = passages.get(reference.id)
        if passage is None:
            raise StorageError(
                f"tree {node.tree_id}, node {node.node_id}: passage {reference.id} is not in the "
                "corpus; give the run's own corpus"
            )
        found.append(
            RetrievedPassage(
                id=passage.id, title=passage.title, text=passage.text, score=reference.score
            )
        )
    return tuple(found)
