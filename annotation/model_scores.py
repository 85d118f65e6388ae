"""Scores of a reward model, for the search and for pairs.

In the search, the value of every node, inner or terminal, is the model's score of the step that led
there, so all values are on one scale. Labels still come from outcomes. For pairs (`pairs.score:
reward_model`) the sibling with the higher score is preferred.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from branchwise.agent import State
from branchwise.rewards import NodeEvaluation, Prompt, RewardModel, prefix_of
from branchwise.types import Question, TreeNode


@dataclass(frozen=True)
class RewardModelEvaluator:
    """The score of the step that led to a state.

    States are scored one at a time, in another thread: a batch would change the last bits of a
    step's vector, and the same seed would no longer give the same tree.

    Attributes:
        prompt: State → messages of the prompt for its next step.
        terminals: See `annotation.evaluators.Evaluator`; the model scores every step.
    """

    model: RewardModel
    prompt: Prompt
    terminals: bool = True
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        step, t = prefix_of(state, self.prompt), state.depth - 1
        async with self._turn:
            [score] = await asyncio.to_thread(self.model.score, [step], [t])
        too_long = "longer than the reward model reads" if score is None else None
        return NodeEvaluation(score, unscored=too_long)


def node_scores(
    model: RewardModel, nodes: Sequence[TreeNode], states: Sequence[State], prompt: Prompt
) -> list[float | None]:
    """Returns a model's score of the step that led to each node; None for the root.

    Args:
        nodes: One tree, in order of `node_id`.
        states: States of the nodes, in the same order.
        prompt: State → messages of the prompt for its next step.
    """
    below_root = [(node, state) for node, state in zip(nodes, states, strict=True) if state.steps]
    steps = [prefix_of(state, prompt) for _, state in below_root]
    scores = iter(
        model.score(steps, [node.depth - 1 for node, _ in below_root]) if below_root else ()
    )
    return [next(scores) if state.steps else None for state in states]
