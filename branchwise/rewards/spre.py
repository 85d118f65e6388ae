"""Shortest Path Reward Estimation: the reward of every step of a search tree.

Source: ReasonRAG eq. 1. An outcome is a completed trajectory; its value is F1 · α^steps, with
steps counted from the root. Labels are computed from the facts that a tree stores (rollouts, judge
scores, answers), so a tree can be relabelled under other settings without a model call.

Estimators:
- `monte_carlo`: mean over all distinct outcomes through the node, tree leaves and evaluation
  rollouts equally;
- `tree`: Σ N·r / Σ N over labelled children; the value of a leaf is its own outcome (the published
  data);
- `rollout`: mean over the rollouts that started at the node and ended with an answer (eq. 1 counts
  those without one as 0);
- `judge`: mean of judge scores · α^depth (`judge_decay`) over the passes through the node, None
  without an answer below.
The reward of a node without an answer at or below it is None; so is that of an invalid action. The
evidence of a reward (`n_outcomes`, components) comes from the outcomes of its estimator, with the
same weights. For `judge` these are the final answers of the passes through the node.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from branchwise.agent import State
from branchwise.mcts import TreeSettings
from branchwise.types import NO_PARENT, Component, Question, Rollout, TreeNode

from .answers import f1, strict_form
from .outcome import Label, Outcome
from .scheme import RewardScheme, register_reward
from .settings import Estimator, SpreSettings


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """A finished trajectory: its answer, and its number of steps from the root."""

    trajectory: str
    answer: str
    steps: int


Evidence = list[tuple[float, RolloutOutcome]]
"""Outcomes with their weights, which are above 0 and need not sum to 1."""


def trajectory_digest(actions: Iterable[tuple[str, str]]) -> str:
    """Returns the digest of (action, content) from the root; equal for equal texts."""
    text = "\x1f".join(f"{kind}\x1e{strict_form(content)}" for kind, content in actions)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def decayed(score: float, depth: int, settings: SpreSettings) -> float:
    """Returns a judge's score of a state, in [0, 1], as a value.

    Eq. 6 is the score alone. Q follows eq. 1, whose outcomes are discounted, so the default
    discounts scores too; otherwise a judged state would outrank an equally good answer.
    """
    return score * settings.alpha**depth if settings.judge_decay else score


def answer_f1(answer: str | None, golds: Sequence[str], settings: SpreSettings) -> float:
    """Returns the F1 of an answer, in [0, 1]; 0 for a missing one."""
    return 0.0 if answer is None else f1(answer, golds, settings.form)


def is_counted(forced: bool, settings: SpreSettings) -> bool:
    """Returns whether an answer counts, which depends on whether it was forced."""
    return settings.label_forced or not forced


def label_tree(
    nodes: Sequence[TreeNode], answers: Sequence[str], settings: SpreSettings, estimator: Estimator
) -> list[Label]:
    """Labels every node of one tree.

    Args:
        nodes: All nodes of the tree, in order of `node_id`.
        answers: Gold answers.
        settings: α, forced answers, and how F1 is computed.
        estimator: One of the four estimators (see module).

    Returns:
        One label per node, in the same order.
    """
    facts = TreeFacts(nodes, tuple(answers), settings)
    return [facts.label(node, estimator) for node in nodes]


@dataclass(frozen=True)
class TreeFacts:
    """A stored tree with the look-up tables that the estimators need."""

    nodes: Sequence[TreeNode]
    answers: tuple[str, ...]
    settings: SpreSettings
    _outcomes: dict[int, dict[str, RolloutOutcome]] = field(default_factory=dict)

    @cached_property
    def children(self) -> dict[int, list[TreeNode]]:
        children: dict[int, list[TreeNode]] = defaultdict(list)
        for node in self.nodes:
            if node.parent_id != NO_PARENT:
                children[node.parent_id].append(node)
        return children

    @cached_property
    def _by_id(self) -> dict[int, TreeNode]:
        return {node.node_id: node for node in self.nodes}

    def evidence(self, node: TreeNode, estimator: Estimator) -> Evidence:
        """Returns the outcomes that an estimator uses at a node (see module)."""
        if estimator == "rollout":
            return [(1.0, outcome) for outcome in self.started_at(node)]
        if estimator == "monte_carlo":
            return [(1.0, outcome) for outcome in self._distinct_outcomes(node.node_id).values()]
        return (
            self._by_visits[node.node_id] if estimator == "tree" else self._leaves_by_visits(node)
        )

    def _distinct_outcomes(self, node_id: int) -> dict[str, RolloutOutcome]:
        """Returns the distinct outcomes at or below a node, of leaves and evaluation rollouts."""
        if node_id not in self._outcomes:
            # By trajectory: rollouts that take the same actions are one outcome, or an answer would
            # count as often as it was drawn.
            outcomes = {o.trajectory: o for o in self.started_at(self._by_id[node_id])}
            for child in self.children[node_id]:
                outcomes.update(self._distinct_outcomes(child.node_id))
            self._outcomes[node_id] = outcomes
        return self._outcomes[node_id]

    def started_at(self, node: TreeNode) -> list[RolloutOutcome]:
        """Returns the outcomes of rollouts that started at `node`; a leaf's is its own answer."""
        if node.terminal:
            return self._own_outcome(node)
        return [
            RolloutOutcome(r.trajectory or f"{node.node_id}:{r.draw}", r.answer, r.steps)
            for r in node.rollouts
            if r.answer is not None and is_counted(r.forced, self.settings)
        ]

    def _own_outcome(self, node: TreeNode) -> list[RolloutOutcome]:
        """Returns the outcome of a node that is an answer and counts, else nothing."""
        if node.action != "answer" or not is_counted(node.forced, self.settings):
            return []
        return [RolloutOutcome(trajectory_digest(self._path(node)), node.content, node.depth)]

    def _path(self, node: TreeNode) -> list[tuple[str, str]]:
        steps = []
        while node.parent_id != NO_PARENT:
            steps.append((node.action, node.content))
            node = self._by_id[node.parent_id]
        return steps[::-1]

    def worth(self, outcome: RolloutOutcome) -> float:
        """Returns F1 · α^steps, in [0, 1]."""
        return self._f1(outcome) * self.settings.alpha**outcome.steps

    def _f1(self, outcome: RolloutOutcome) -> float:
        return answer_f1(outcome.answer, self.answers, self.settings)

    @cached_property
    def _by_visits(self) -> dict[int, Evidence]:
        """Leaves by node, each with its share of Σ N·r / Σ N, bottom-up."""
        # The weights of a node's leaves sum to 1. A child without an answer below drops out with
        # its visits, so that it does not count as worth 0:
        #     node ─ 3 visits ─ answer A     A: 3/4
        #          ├ 1 visit  ─ answer B     B: 1/4
        #          └ 5 visits ─ no answer    –
        leaves: dict[int, Evidence] = {}
        for node in sorted(self.nodes, key=lambda n: -n.depth):
            if node.terminal:
                leaves[node.node_id] = [(1.0, outcome) for outcome in self._own_outcome(node)]
                continue
            below = [c for c in self.children[node.node_id] if leaves[c.node_id] and c.visits]
            visits = sum(child.visits for child in below)
            leaves[node.node_id] = [
                (child.visits / visits * weight, outcome)
                for child in below
                for weight, outcome in leaves[child.node_id]
            ]
        return leaves

    def _leaves_by_visits(self, node: TreeNode) -> Evidence:
        """Leaves at or below a node, by the passes that ended there."""
        leaves: Evidence = [(node.visits, o) for o in self._own_outcome(node) if node.visits]
        for child in self.children[node.node_id]:
            leaves += self._leaves_by_visits(child)
        return leaves

    def _judge_sums(self, node: TreeNode) -> tuple[int, float]:
        """Returns count and sum of the judge values of the passes that ended at or below `node`."""
        # Every pass ends at exactly one node (mcts.tree.Tree.back_up), so the passes that ended
        # here are visits(n) - sum(visits(child)). Each adds the node's own judge value once;
        # summing over the subtree gives the backed-up mean that the search used (ReasonRAG eq. 6).
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
        if node.terminal and node.judge_text is None:  # `mcts.judge_terminals` is off
            outcomes = self._own_outcome(node)
            return self.worth(outcomes[0]) if outcomes else None
        if node.judge_score is None:
            return None
        return decayed(node.judge_score, node.depth, self.settings)

    def label(self, node: TreeNode, estimator: Estimator) -> Label:
        """Returns the node's reward with its evidence; the reward of an invalid action is None."""
        evidence = [] if node.action == "invalid" else self.evidence(node, estimator)
        if not evidence:
            return Label(None, 0)
        weights = [weight for weight, _ in evidence]
        outcomes = [outcome for _, outcome in evidence]

        def mean(value: Callable[[RolloutOutcome], float]) -> float:
            return fmean(map(value, outcomes), weights)

        if estimator == "judge":
            passes, total = self._judge_sums(node)
            reward = total / passes if passes else None
        else:
            reward = mean(self.worth)
        parts = (
            Component(name="f1", value=mean(self._f1)),
            Component(name="steps", value=mean(lambda outcome: outcome.steps)),
        )
        return Label(reward, len({outcome.trajectory for outcome in outcomes}), parts)


@register_reward
class Spre(RewardScheme):
    """Rewards a step by the answers that it leads to: F1 · α^steps."""

    name = "spre"
    settings_class = SpreSettings
    settings: SpreSettings
    by_answer = True

    @property
    def estimator(self) -> Estimator:
        """The estimator of labels: by default `tree` for a judge's trees, else `monte_carlo`."""
        default: Estimator = "tree" if self.recipe.mcts.uses("judge") else "monte_carlo"
        return self.settings.estimator or default

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        search, estimator = self.recipe.mcts, self.estimator
        if not self.settings.judge_decay and not search.uses("judge"):
            yield (
                "rewards.judge_decay is about the scores of a judge, which nothing uses; remove "
                "it, or set mcts.evaluator: judge"
            )
        facts = {"judge": "judge scores", "rollout": "rollouts"}.get(estimator)
        if facts is None:
            return
        if not isinstance(search, TreeSettings):
            yield (
                f"rewards.estimator is `{estimator}` but mcts.kind is `chains`, which scores "
                "only answers; use tree or monte_carlo, or set mcts.kind: tree"
            )
        elif estimator != search.evaluator:
            yield (
                f"rewards.estimator is `{estimator}` but mcts.evaluator is "
                f"`{search.evaluator}`, so nodes lack {facts}; use tree or monte_carlo, or "
                f"mcts.evaluator: {estimator}"
            )

    def describe(self) -> str:
        return f"SPRE `{self.estimator}`, α {self.settings.alpha}"

    def outcome(self, state: State, question: Question) -> Outcome:
        score = answer_f1(state.answer, question.answers, self.settings)
        total = score * self.settings.alpha**state.depth
        return Outcome(total, {"f1": score, "steps": state.depth})

    def judged(self, score: float, state: State) -> float:
        return decayed(score, state.depth, self.settings)

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        return label_tree(nodes, question.answers, self.settings, self.estimator)

    def rollout_value(self, rollout: Rollout, golds: Sequence[str]) -> float | None:
        if rollout.answer is None or not is_counted(rollout.forced, self.settings):
            return None
        return answer_f1(rollout.answer, golds, self.settings) * self.settings.alpha**rollout.steps
