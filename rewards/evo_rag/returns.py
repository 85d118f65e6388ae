"""EVO-RAG's returns: the reward of a step and all later ones, by component.

Source: EVO-RAG section 3.3, R(x) = Σ_t w_t · r_t. Siblings compare w · r + G(child), undiscounted.
For an inner node, G is the visit-weighted mean over its children of (w · r + G). Returns need only
the stored trees, so one set of trees serves every schedule and every subset of rewards.

A node stores each component twice: the raw reward of this step under its name, and the sum of raw
rewards of this step and all later ones under `<name>_return`. Reward-model heads learn the sum,
which does not depend on the schedule. A node's reward is the weighted sum.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.state import State, Step
from rewards.evo_rag.schedule import weights
from rewards.evo_rag.steps import Gold, Rewards, Similarity, step_rewards
from rewards.labels import Label
from rewards.outcome import Outcome
from rewards.settings import REWARDS, EvoRagSettings
from storage.records import NO_PARENT, Component, TreeNode

RETURN = "_return"
"""Suffix of the components that are sums over a step and all later ones."""

Parts = Mapping[str, float | None]


@dataclass(frozen=True)
class EpisodeRewards:
    """The seven rewards under a recipe's settings and its budget.

    Attributes:
        horizon: T_max of the weights' progress t / T_max, in policy calls.
        similarity: Similarity of sub-queries.
        verified: Whether a verifier judges refusals, so that a refusal without a verdict lacks a
            reward; otherwise the gold documents decide.
    """

    settings: EvoRagSettings
    horizon: int
    similarity: Similarity
    verified: bool = False

    def raw(self, steps: Sequence[Step], gold: Gold, verdict: bool | None) -> Rewards:
        """Returns the raw rewards of the last of `steps`, unweighted."""
        return step_rewards(
            steps,
            gold,
            self.settings,
            horizon=self.horizon,
            similarity=self.similarity,
            verdict=verdict,
            verified=self.verified,
        )

    def weighted(self, raw: Rewards, t: int) -> dict[str, float | None]:
        """Returns w_k(t) · r_k of a step; t is its 0-based index."""
        scale = weights(self.settings, t / self.horizon)
        return {name: _times(scale[name], raw[name]) for name in REWARDS}

    def episode(self, steps: Sequence[Step], gold: Gold, verdict: bool | None = None) -> Outcome:
        """Returns Σ_t w_t · r_t of a whole trajectory and of each reward; None adds nothing.

        Args:
            verdict: Verdict of the verifier on the last step.
        """
        total = 0.0
        parts: dict[str, float] = dict.fromkeys(REWARDS, 0.0)
        for end in range(1, len(steps) + 1):
            raw = self.raw(steps[:end], gold, verdict if end == len(steps) else None)
            weighted = self.weighted(raw, end - 1)
            total += sum(value or 0.0 for value in weighted.values())
            parts = {name: parts[name] + (weighted[name] or 0.0) for name in REWARDS}
        return Outcome(total, parts)


def label_returns(
    nodes: Sequence[TreeNode],
    states: Sequence[State],
    gold: Gold,
    rewards: EpisodeRewards,
) -> list[Label]:
    """Labels every node of one tree with its return.

    Nodes without a finished trajectory stay unlabelled: invalid actions, states that the search
    left open, and the root.

    Args:
        nodes: All nodes of the tree, in order of `node_id`.
        states: States of the nodes, in the same order.
        gold: Gold answers and passages of the tree's question.

    Returns:
        One label per node, in the same order; `n_outcomes` counts the finished trajectories.
    """
    tree = _Returns(nodes, states, gold, rewards)
    return [tree.label(place) for place in range(len(nodes))]


class _Returns:
    """Own rewards and returns of every node, from the leaves up."""

    def __init__(
        self,
        nodes: Sequence[TreeNode],
        states: Sequence[State],
        gold: Gold,
        rewards: EpisodeRewards,
    ) -> None:
        self._nodes = nodes
        places = {node.node_id: place for place, node in enumerate(nodes)}
        self._children: dict[int, list[int]] = defaultdict(list)
        self._raw: dict[int, Rewards] = {}
        self._weighted: dict[int, Parts] = {}
        for place, (node, state) in enumerate(zip(nodes, states, strict=True)):
            if node.parent_id == NO_PARENT:
                continue
            self._children[places[node.parent_id]].append(place)
            self._raw[place] = rewards.raw(state.steps, gold, node.verdict)
            if node.action == "search" and node.terminal:  # it reached the token limit unserved
                self._raw[place] = {**self._raw[place], "retrieval": None}
            self._weighted[place] = rewards.weighted(self._raw[place], node.depth - 1)
        self._outcomes: dict[int, int] = {}
        self._raw_return: dict[int, Parts] = {}
        self._weighted_return: dict[int, Parts] = {}
        for place in sorted(range(len(nodes)), key=lambda place: -nodes[place].depth):
            self._compute_return(place)

    def _compute_return(self, place: int) -> None:
        # R(n) = own(n) + sum(N_c * R(c)) / sum(N_c) over children c that lead to a finished
        # trajectory. Nodes are processed deepest first, so children are done. Per component: if own
        # is None, R is None; a child whose R is None drops out of the mean together with its
        # visits.
        node = self._nodes[place]
        below = [child for child in self._children[place] if self._outcomes[child]]
        if node.terminal:
            self._outcomes[place] = int(node.action != "invalid")
        else:
            self._outcomes[place] = sum(self._outcomes[child] for child in below)
        if node.parent_id == NO_PARENT or not self._outcomes[place]:
            return
        visits = [max(self._nodes[child].visits, 1) for child in below]
        for own, returns in (
            (self._raw[place], self._raw_return),
            (self._weighted[place], self._weighted_return),
        ):
            after = [returns[child] for child in below]
            returns[place] = {
                name: _step_return(own[name], after, visits, name) for name in REWARDS
            }

    def label(self, place: int) -> Label:
        if place not in self._weighted_return:
            earned = self._raw.get(place, {})
            return Label(None, 0, tuple(Component(name=k, value=v) for k, v in earned.items()))
        own, total = self._raw[place], self._raw_return[place]
        weighted = self._weighted_return[place]
        return Label(
            reward=sum(value for value in weighted.values() if value is not None),
            n_outcomes=self._outcomes[place],
            components=tuple(
                Component(name=f"{name}{ending}", value=parts[name])
                for parts, ending in ((own, ""), (total, RETURN))
                for name in REWARDS
            ),
            weighted=weighted,
        )


def _step_return(
    own: float | None, after: Sequence[Parts], visits: Sequence[int], name: str
) -> float | None:
    """Returns the own value plus the visit-weighted mean of the later ones; None if either is."""
    if own is None or not after:
        return own
    known = [
        (value, n)
        for parts, n in zip(after, visits, strict=True)
        if (value := parts[name]) is not None
    ]
    if not known:
        return None
    return own + sum(value * n for value, n in known) / sum(n for _, n in known)


def _times(weight: float, value: float | None) -> float | None:
    return None if value is None else weight * value
