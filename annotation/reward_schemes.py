"""What trajectories are worth: to the search that grows a tree, and as labels of its nodes.

One object a reward system; everything else in annotation is the same for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.state import State
from annotation.evaluators import NodeFacts, evaluate_leaf
from annotation.verifier import Verifier
from engines.sampling import Usage
from rewards.evo_rag import Gold
from rewards.labels import Label
from rewards.returns import EpisodeRewards, label_returns
from rewards.settings import Estimator, SpreSettings
from rewards.spre import label_tree
from storage.records import Question, TreeNode


class RewardScheme(Protocol):
    """Values finished trajectories, and labels stored trees."""

    async def finished(self, question: Question, state: State, path: str) -> NodeFacts:
        """Value a terminal `state`; `path` names its node in the ledger."""
        ...

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        """One label a node of a tree; `nodes` in order of `node_id`, `states` likewise."""
        ...


@dataclass(frozen=True)
class SpreWorth:
    """ReasonRAG's: F1 · α^steps (`rewards.spre`)."""

    spre: SpreSettings
    estimator: Estimator

    async def finished(self, question: Question, state: State, path: str) -> NodeFacts:
        return evaluate_leaf(question, state, self.spre)

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        return label_tree(nodes, question.answers, self.spre, self.estimator)


@dataclass(frozen=True)
class EvoRagWorth:
    """EVO-RAG's: the weighted return (`rewards.returns`).

    Attributes:
        verifier: says of a REFUSE whether the evidence sufficed; null where stored verdicts do,
            or the gold.
    """

    rewards: EpisodeRewards
    verifier: Verifier | None = None

    async def finished(self, question: Question, state: State, path: str) -> NodeFacts:
        verdict, usage = None, Usage()
        if self.verifier is not None and state.refused and self._open(state):
            verdict, usage = await self.verifier.sufficient(question, state, path)
        value = self.rewards.episode(state.steps, Gold.of(question), verdict)
        return NodeFacts(value, verdict=verdict, usage=usage)

    def _open(self, state: State) -> bool:
        """Whether the evidence decides on a refusal: before any search it may be wrong anyway."""
        judged = self.rewards.settings.early_refusal == "judged"
        return judged or any(step.action.kind == "search" for step in state.steps)

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        return label_returns(nodes, states, Gold.of(question), self.rewards)
