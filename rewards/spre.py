"""Shortest Path Reward Estimation: what every step of a search tree was worth.

Source: ReasonRAG eq. 1. An outcome is a completed trajectory; it is worth F1 · α^steps, with steps
counted from the root. Labels are computed from the facts that a tree keeps (rollouts, judge
scores, answers), so a tree can be labelled again with other settings and no model call.

Estimators:
- `monte_carlo`: mean over all distinct outcomes through the node, tree leaves and evaluation
  rollouts alike;
- `tree`: Σ N·r / Σ N over labelled children, a leaf being worth its own outcome (the published
  data);
- `rollout`: mean over the rollouts that started at the node (eq. 1 to the letter);
- `judge`: mean of judge scores · α^depth over the passes through the node, null where no answer
  lies below.
A node with no answer at or below it is null. So is an invalid action.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from rewards.answers import f1, normalise
from rewards.settings import Estimator, SpreSettings
from storage.records import NO_PARENT, Component, TreeNode


@dataclass(frozen=True, slots=True)
class Outcome:
    """A completed trajectory: what it answered, and its steps from the root."""

    trajectory: str
    answer: str
    steps: int


@dataclass(frozen=True, slots=True)
class Label:
    """A node's reward in [0, 1], or null; and how many distinct outcomes lie at or below it."""

    reward: float | None
    n_outcomes: int
    components: tuple[Component, ...] = ()


def trajectory_digest(actions: Iterable[tuple[str, str]]) -> str:
    """Digest of (action, content) from the root; equal for trajectories that say the same."""
    said = "\x1f".join(f"{kind}\x1e{normalise(content)}" for kind, content in actions)
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def default_estimator(evaluator: str) -> Estimator:
    """`monte_carlo` for trees grown with rollouts, `tree` for trees grown with a judge."""
    return "tree" if evaluator == "judge" else "monte_carlo"


def label_tree(
    nodes: Sequence[TreeNode],
    answers: Sequence[str],
    settings: SpreSettings,
    estimator: Estimator,
) -> list[Label]:
    """Label every node of one tree.

    Args:
        nodes: all nodes of the tree, in order of `node_id`.
        answers: the gold answers.
        settings: α, forced answers, and how F1 is computed.
        estimator: which of the four (see module).

    Returns:
        One label a node, in the same order.
    """
    facts = TreeFacts(nodes, tuple(answers), settings)
    estimate: dict[Estimator, Callable[[TreeNode], float | None]] = {
        "monte_carlo": lambda node: facts.mean_worth(facts.outcomes(node.node_id)),
        "rollout": lambda node: facts.mean_worth(facts.started_at(node)),
        "tree": lambda node: facts.tree_rewards[node.node_id],
        "judge": facts.judged,
    }
    return [facts.label(node, estimate[estimator](node)) for node in nodes]


@dataclass(frozen=True)
class TreeFacts:
    """A stored tree with the look-ups that the estimators need."""

    nodes: Sequence[TreeNode]
    answers: tuple[str, ...]
    settings: SpreSettings
    _outcomes: dict[int, dict[str, Outcome]] = field(default_factory=dict)

    @cached_property
    def children(self) -> dict[int, list[TreeNode]]:
        found: dict[int, list[TreeNode]] = defaultdict(list)
        for node in self.nodes:
            if node.parent_id != NO_PARENT:
                found[node.parent_id].append(node)
        return found

    @cached_property
    def _by_id(self) -> dict[int, TreeNode]:
        return {node.node_id: node for node in self.nodes}

    def outcomes(self, node_id: int) -> list[Outcome]:
        """Distinct outcomes at or below a node, leaves and evaluation rollouts alike."""
        return list(self._collected(node_id).values())

    def _collected(self, node_id: int) -> dict[str, Outcome]:
        if node_id not in self._outcomes:
            node = self._by_id[node_id]
            found = {o.trajectory: o for o in (*self.started_at(node), *self._own(node))}
            for child in self.children[node_id]:
                found.update(self._collected(child.node_id))
            self._outcomes[node_id] = found
        return self._outcomes[node_id]

    def started_at(self, node: TreeNode) -> list[Outcome]:
        """Outcomes of the rollouts that started at `node`; a leaf's is its own answer."""
        if node.terminal:
            return self._own(node)
        return [
            Outcome(r.trajectory or f"{node.node_id}:{r.draw}", r.answer, r.steps)
            for r in node.rollouts
            if r.answer is not None and self._counts(forced=r.forced)
        ]

    def _own(self, node: TreeNode) -> list[Outcome]:
        if node.action != "answer" or not self._counts(forced=node.forced):
            return []
        return [Outcome(trajectory_digest(self._path(node)), node.content, node.depth)]

    def _counts(self, *, forced: bool) -> bool:
        return self.settings.label_forced or not forced

    def _path(self, node: TreeNode) -> list[tuple[str, str]]:
        steps = []
        while node.parent_id != NO_PARENT:
            steps.append((node.action, node.content))
            node = self._by_id[node.parent_id]
        return steps[::-1]

    def worth(self, outcome: Outcome) -> float:
        """F1 · α^steps, in [0, 1]."""
        return self._f1(outcome) * self.settings.alpha**outcome.steps

    def _f1(self, outcome: Outcome) -> float:
        return f1(outcome.answer, self.answers, keep_articles=self.settings.keep_articles)

    def mean_worth(self, outcomes: Sequence[Outcome]) -> float | None:
        """Mean worth, or null without outcomes."""
        return fmean(self.worth(o) for o in outcomes) if outcomes else None

    @cached_property
    def tree_rewards(self) -> dict[int, float | None]:
        """Σ N·r / Σ N over labelled children, from the leaves up."""
        rewards: dict[int, float | None] = {}
        for node in sorted(self.nodes, key=lambda n: -n.depth):
            below = [
                (child.visits, reward)
                for child in self.children[node.node_id]
                if (reward := rewards[child.node_id]) is not None
            ]
            weight = sum(visits for visits, _ in below)
            if node.terminal:
                rewards[node.node_id] = self.mean_worth(self._own(node))
            else:
                rewards[node.node_id] = sum(v * r for v, r in below) / weight if weight else None
        return rewards

    def judged(self, node: TreeNode) -> float | None:
        """Mean judge value over the passes that ended at or below `node` (eq. 6)."""
        if not self._answered_below(node):
            return None
        weight, total = self._judge_sums(node)
        return total / weight if weight else None

    def _answered_below(self, node: TreeNode) -> bool:
        return bool(self._own(node)) or any(
            self._answered_below(child) for child in self.children[node.node_id]
        )

    def _judge_sums(self, node: TreeNode) -> tuple[int, float]:
        children = self.children[node.node_id]
        value = self._judge_value(node)
        ended_here = node.visits - sum(child.visits for child in children)
        weight, total = (ended_here, ended_here * value) if value is not None else (0, 0.0)
        for child in children:
            below_weight, below_total = self._judge_sums(child)
            weight, total = weight + below_weight, total + below_total
        return weight, total

    def _judge_value(self, node: TreeNode) -> float | None:
        if node.action == "invalid":
            return 0.0
        if node.terminal:
            return self.mean_worth(self._own(node))
        if node.judge_score is None:
            return None
        return node.judge_score * self.settings.alpha**node.depth

    def label(self, node: TreeNode, reward: float | None) -> Label:
        """`reward` with its evidence; an invalid action has none."""
        if node.action == "invalid":
            return Label(None, 0)
        outcomes = self.outcomes(node.node_id)
        if reward is None or not outcomes:
            return Label(reward, len(outcomes))
        parts = (
            Component(name="f1", value=fmean(self._f1(o) for o in outcomes)),
            Component(name="steps", value=fmean(o.steps for o in outcomes)),
        )
        return Label(reward, len(outcomes), parts)
