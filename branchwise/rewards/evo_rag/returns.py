"""EVO-RAG's returns: the reward of a step and all later ones, by component.

Source: EVO-RAG section 3.3, R(x) = Σ_t w_t · r_t. Siblings compare w · r + G(child), undiscounted.
For an inner node, G is the visit-weighted mean over its children of (w · r + G). Returns need only
the stored trees, so one set of trees serves every schedule and every subset of rewards.

A node stores each component twice: the raw reward of this step under its name, and the sum of raw
rewards of this step and all later ones under `<name>_return`. Reward-model heads learn the sum,
which does not depend on the schedule. A node's reward is the weighted sum.
"""

from collections import defaultdict
from collections.abc import Sequence

from branchwise.agent import State
from branchwise.types import NO_PARENT, Component, TreeNode

from ..outcome import Label
from .steps import EpisodeRewards, Gold, Rewards

RETURN = "_return"
"""Suffix of the components that are sums over a step and all later ones."""


def label_returns(
    nodes: Sequence[TreeNode], states: Sequence[State], gold: Gold, rewards: EpisodeRewards
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
    labels: dict[int, Label] = {}
    raw_returns: dict[int, Rewards] = {}
    children: dict[int, list[TreeNode]] = defaultdict(list)
    # Deepest first, so that children are labelled before their parents.
    pairs = zip(nodes, states, strict=True)
    for node, state in sorted(pairs, key=lambda pair: -pair[0].depth):
        if node.parent_id == NO_PARENT:
            labels[node.node_id] = Label(None, 0)
            continue
        children[node.parent_id].append(node)
        raw = rewards.raw(state.steps, gold, node.verdict)
        if node.action == "search" and node.terminal:  # it reached the token limit unserved
            raw = {**raw, "retrieval": None}
        below = [child for child in children[node.node_id] if labels[child.node_id].n_outcomes]
        n_outcomes = sum(labels[child.node_id].n_outcomes for child in below)
        if node.terminal:
            n_outcomes = int(node.action != "invalid")
        if not n_outcomes:
            labels[node.node_id] = Label(None, 0, _components(raw))
            continue
        visits = [max(child.visits, 1) for child in below]
        later = [raw_returns[child.node_id] for child in below]
        # The raw sum is for the heads of a reward model, which must not depend on the schedule. The
        # reward cannot be computed from it, because the weights change from step to step.
        raw_returns[node.node_id] = _returns(raw, later, visits)
        later = [labels[child.node_id].weighted for child in below]
        weighted = _returns(rewards.weighted(raw, node.depth - 1), later, visits)
        labels[node.node_id] = Label(
            reward=sum(value for value in weighted.values() if value is not None),
            n_outcomes=n_outcomes,
            components=_components(raw) + _components(raw_returns[node.node_id], RETURN),
            weighted=weighted,
        )
    return [labels[node.node_id] for node in nodes]


def _components(parts: Rewards, suffix: str = "") -> tuple[Component, ...]:
    return tuple(Component(name=f"{name}{suffix}", value=value) for name, value in parts.items())


def _returns(step: Rewards, later: Sequence[Rewards], visits: Sequence[int]) -> Rewards:
    """Returns R(n) = r(n) + Σ N_c · R(c) / Σ N_c over children c, per component.

    Args:
        step: Rewards r of the step n; a component of None stays None.
        later: Returns of the children that lead to a finished trajectory. A child whose component
            is None drops out of its mean together with its visits; if all do, the sum is None.
        visits: Visits of these children.
    """
    return {
        name: _step_return(value, [parts[name] for parts in later], visits)
        for name, value in step.items()
    }


def _step_return(
    value: float | None, later: Sequence[float | None], visits: Sequence[int]
) -> float | None:
    if value is None or not later:
        return value
    known_parts = [(part, n) for part, n in zip(later, visits, strict=True) if part is not None]
    if not known_parts:
        return None
    return value + sum(part * n for part, n in known_parts) / sum(n for _, n in known_parts)
