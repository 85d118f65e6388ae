"""Fresh rollouts: completions of a stored node that no label has used.

A label is the mean of a few draws, and the higher of two noisy means tends to be too high. Fresh
draws from the same states, by the same policy at the same temperature, show whether the order of
two siblings was more than luck (see `analysis.survival`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent.concurrent_map import map_concurrently
from agent.environment import Environment
from agent.state import State
from annotation.evaluators import draw_rollouts, rollout_rows
from engines.sampling import Sampling
from storage.records import FreshRollouts, Question, TreeNode

ROOT = "fresh"
"""Ledger path of these draws: `fresh/<tree_id>/<node_id>`, separate from the trees' own."""


@dataclass(frozen=True)
class FreshRoller:
    """Draws new rollouts from nodes of stored trees.

    Attributes:
        environment: Environment that the trees were grown in.
        sampling: Sampling of the rollouts; the trees' rollouts used the policy's own temperature.
        rollouts: Draws per node; a larger number keeps the first draws.
    """

    environment: Environment
    sampling: Sampling
    rollouts: int = 8

    async def roll(
        self,
        question: Question,
        nodes: Sequence[TreeNode],
        states: Sequence[State],
        wanted: Collection[int],
    ) -> list[FreshRollouts]:
        """Rolls out the wanted nodes of one tree, all concurrently.

        If a limit stops a node, its row is left out; its calls are in the ledger.

        Args:
            nodes: All nodes of the tree, in order of `node_id`.
            states: States of the nodes, in the same order (`agent.replay.replay_tree`).
            wanted: Ids of the nodes to roll out.

        Raises:
            EndpointError: If the policy's endpoint failed.
            RetrievalError: If a search failed.
        """
        chosen = [(n, s) for n, s in zip(nodes, states, strict=True) if n.node_id in wanted]

        async def roll(one: tuple[TreeNode, State]) -> FreshRollouts:
            return await self._row(question, *one)

        rolled = [row async for row in map_concurrently(chosen, roll, len(chosen))]
        return sorted(rolled, key=lambda row: row.node_id)

    async def _row(self, question: Question, node: TreeNode, state: State) -> FreshRollouts:
        draws = 1 if state.terminal else self.rollouts
        path = f"{ROOT}/{node.tree_id}/{node.node_id}"
        trajectories = await draw_rollouts(
            self.environment, self.sampling, question, state, path, draws
        )
        return FreshRollouts(
            tree_id=node.tree_id,
            question_id=node.question_id,
            source=node.source,
            cycle=node.cycle,
            seed=node.seed,
            node_id=node.node_id,
            temperature=self.sampling.temperature,
            rollouts=rollout_rows(question, trajectories),
            policy_digest=node.policy_digest,
        )
