"""Supervised examples from a run: chosen steps of pairs, or right trajectories of trees."""

from collections.abc import Callable, Iterable, Sequence

from agent.state import State
from storage.records import NO_PARENT, Message, Pair, TreeNode
from training.examples import StepExample


def chosen_steps(pairs: Iterable[Pair]) -> list[StepExample]:
    """Returns the chosen step of each pair, each prompt and text once (ReasonRAG table 3, SFT)."""
    found = {
        (pair.prompt, pair.chosen[0].content): StepExample(
            tuple(Message(m.role, m.content) for m in pair.prompt),
            pair.chosen[0].content,
            pair.question_id,
            pair.stage,
        )
        for pair in pairs
    }
    return list(found.values())


def right_trajectories(
    nodes: Sequence[TreeNode],
    states: Sequence[State],
    prompt: Callable[[State], Sequence[Message]],
) -> list[StepExample]:
    """Returns every valid and complete step on the way to a complete leaf whose F1 is 1, once.

    Args:
        nodes: Nodes of one tree, in order of `node_id`.
        states: States of the nodes, in the same order.
        prompt: Function from a state to the messages of the prompt for its next step.
    """
    wanted: set[int] = set()
    for node in nodes:
        if node.action == "answer" and node.f1 == 1.0 and not node.cut:
            step = node
            while step.parent_id != NO_PARENT:
                wanted.add(step.node_id)
                step = nodes[step.parent_id]
    return [
        StepExample(tuple(prompt(states[node.parent_id])), node.text, node.question_id, node.stage)
        for node in nodes
        if node.node_id in wanted and node.action != "invalid" and not node.cut
    ]
