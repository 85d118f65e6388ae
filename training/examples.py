"""Supervised examples of a run: one policy step, its prompt and the text to learn.

They are chosen steps of pairs, right trajectories of trees, or traces (`training.warm_start`).

Token ids come from the template code that prompts the embedded engine, so training and sampling use
the same tokens. Only the policy's own tokens have a loss: its text and the token that ends its
turn, if it ends there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from branchwise.agent import State
from branchwise.base import ConfigError
from branchwise.types import NO_PARENT, Message, Pair, TreeNode
from branchwise.weights import prompt_ids, target_ids

from .packing import StepTokens


@dataclass(frozen=True, slots=True)
class StepExample:
    """A state's messages and the step to learn.

    Attributes:
        messages: Prompt in the protocol's form.
        target: Text of the policy, without special tokens.
        stage: Stage of the step.
    """

    messages: tuple[Message, ...]
    target: str
    question_id: str
    stage: str


def tokenise(
    examples: Iterable[StepExample], tokenizer: Any, stops: tuple[str, ...] = ()
) -> list[StepTokens]:
    """Returns examples as token ids, in order; `stops` are the protocol's stop strings."""
    return [
        StepTokens(
            prompt_ids(example.messages, tokenizer), target_ids(example.target, tokenizer, stops)
        )
        for example in examples
    ]


def chosen_steps(pairs: Iterable[Pair]) -> list[StepExample]:
    """Returns the chosen step of each pair, each prompt and text once (ReasonRAG table 3, SFT)."""
    steps = {
        (pair.prompt, pair.chosen[0].content): StepExample(
            tuple(Message(m.role, m.content) for m in pair.prompt),
            pair.chosen[0].content,
            pair.question_id,
            pair.stage,
        )
        for pair in pairs
    }
    return list(steps.values())


def right_trajectories(
    nodes: Sequence[TreeNode], states: Sequence[State], prompt: Callable[[State], Sequence[Message]]
) -> list[StepExample]:
    """Returns every valid and complete step on the way to a complete leaf whose F1 is 1, once.

    Args:
        nodes: Nodes of one tree, in order of `node_id`.
        states: States of the nodes, in the same order.
        prompt: Function from a state to the messages of the prompt for its next step.
    """
    on_the_way: set[int] = set()
    for node in nodes:
        if node.action == "answer" and node.f1 == 1.0 and not node.cut:
            step = node
            while step.parent_id != NO_PARENT:
                on_the_way.add(step.node_id)
                step = nodes[step.parent_id]
    return [
        StepExample(tuple(prompt(states[node.parent_id])), node.text, node.question_id, node.stage)
        for node in nodes
        if node.node_id in on_the_way and node.action != "invalid" and not node.cut
    ]


def filter_by_length(
    lengths: Sequence[int], max_length: int, max_dropped_share: float
) -> tuple[list[int], str]:
    """Returns the indices of the examples that fit, and a description of all lengths.

    Raises:
        ConfigError: If more than `max_dropped_share` do not fit. Examples are never cut.
    """
    fitting = [i for i, length in enumerate(lengths) if length <= max_length]
    ordered = sorted(lengths) or [0]
    median, longest, too_long = ordered[len(ordered) // 2], ordered[-1], len(lengths) - len(fitting)
    if too_long > max_dropped_share * len(lengths) or not fitting:
        raise ConfigError(
            f"{too_long} of {len(lengths)} examples are longer than max_length {max_length} tokens "
            f"(longest {longest}); raise max_length, use shorter or fewer passages, or raise "
            "training.max_dropped_share"
        )
    return fitting, (
        f"{len(lengths)} examples, median {median} tokens, longest {longest}, {too_long} over the "
        "limit"
    )
