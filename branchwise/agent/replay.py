"""Rebuilds states from stored steps, so that a tree can be read without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from branchwise.base import StorageError
from branchwise.types import NO_PARENT, Passage, Question, RetrievedPassage, TreeNode

from .protocol import AgentProtocol, root_of
from .state import ACTIONS, TERMINAL, Action, State, Step


def replay_tree(
    question: Question,
    nodes: Sequence[TreeNode],
    passages: Mapping[str, Passage],
    protocol: AgentProtocol,
) -> list[State]:
    """Returns the state of every node of a stored tree, in order of node id.

    Args:
        question: Question of the tree.
        nodes: All nodes of one tree, in order of `node_id`.
        passages: Passages of the corpus by id; rows store only references.
        protocol: Protocol, which decides the stage after each action, and the inserted text.

    Raises:
        StorageError: If a row comes before its parent, has an unknown action, or cites a passage
            that the corpus lacks.
    """
    states: dict[int, State] = {}
    for node in nodes:
        if node.parent_id == NO_PARENT:
            searched = protocol.first_query(question) is not None
            shown = _retrieved(node, passages) if searched else None
            states[node.node_id] = root_of(question, protocol, shown)
            continue
        if node.parent_id not in states:
            raise StorageError(
                f"tree {node.tree_id}, node {node.node_id}: its parent {node.parent_id} does not "
                "come before it; restore the run's trees (`branchwise verify`)"
            )
        states[node.node_id] = _next_state(states[node.parent_id], node, passages, protocol)
    return [states[node.node_id] for node in nodes]


def _next_state(
    parent: State, node: TreeNode, passages: Mapping[str, Passage], protocol: AgentProtocol
) -> State:
    if node.action not in ACTIONS:
        raise StorageError(
            f"tree {node.tree_id}, node {node.node_id}: unknown action `{node.action}`; "
            "restore the run's trees (`branchwise verify`)"
        )
    action = Action(node.action, node.content)
    step = Step(
        parent.stage,
        node.text,
        action,
        node.forced,
        _retrieved(node, passages),
        cut=node.cut,
        token_ids=node.token_ids,
        total_tokens=node.input_tokens + node.output_tokens,
    )
    # The last call of a budget ends a trajectory whatever its action, and the row does not store
    # which call was the last. So the row decides, and all other nodes have calls left.
    if node.terminal:
        return parent.after(step, TERMINAL)
    step = replace(step, inserted=protocol.inserted(parent, step))
    return parent.after(step, protocol.next_stage(parent, action))


def _retrieved(node: TreeNode, passages: Mapping[str, Passage]) -> tuple[RetrievedPassage, ...]:
    retrieved = []
    for ref in node.passages:
        passage = passages.get(ref.id)
        if passage is None:
            raise StorageError(
                f"tree {node.tree_id}, node {node.node_id}: passage {ref.id} is not in the "
                "corpus; use the run's own corpus. If a search server found it, data.corpus must "
                "hold the server's passages, too"
            )
        retrieved.append(
            RetrievedPassage(id=ref.id, title=passage.title, text=passage.text, score=ref.score)
        )
    return tuple(retrieved)
