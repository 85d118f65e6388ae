"""Rewards of whole trajectories as reward schemes: ARENA, R1-Searcher, Eval-RAR.

A node's label is the mean outcome of the distinct finished trajectories at or below it. The outcome
is computed from the text of every call, which an evaluator's rollouts do not store, so the search
must keep every step as a node. The cost of an invalid step counts for the steps before it; the step
itself is unlabelled.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, ClassVar

from branchwise.agent import AgentProtocol, State, protocol_of
from branchwise.types import NO_PARENT, Component, Question, TreeNode

from .labels import Label
from .outcome import Outcome, Verdicts
from .scheme import RewardScheme


class OutcomeScheme(RewardScheme):
    """A reward of finished trajectories.

    Attributes:
        title: Name of the system, for use in a sentence.
    """

    title: ClassVar[str]
    whole_reply = True

    def describe(self) -> str:
        changed = self.settings.model_dump(mode="json", exclude_defaults=True)
        return ", ".join([f"{self.title} outcomes", *(f"`{k}: {v}`" for k, v in changed.items())])

    @classmethod
    @abstractmethod
    def score(
        cls, question: Question, protocol: AgentProtocol, state: State, settings: Any
    ) -> tuple[Outcome, Verdicts]:
        """Returns the reward of a finished trajectory, and the verdicts of the rules on it."""

    @classmethod
    def verdicts(cls, question: Question, protocol: AgentProtocol, state: State) -> Verdicts:
        """Checks a finished trajectory against the rules, under the default settings."""
        settings = cls.settings_class()  # type: ignore[call-arg]  # `scheme` has a default there
        _, verdicts = cls.score(question, protocol, state, settings)
        return verdicts._replace(turn_tokens=state.steps[-1].total_tokens)

    def outcome(self, state: State, question: Question) -> Outcome:
        return self.score(question, protocol_of(self.recipe.agent), state, self.settings)[0]

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        below: dict[int, list[Outcome]] = defaultdict(list)
        # Children have larger ids than their parents.
        for node, state in sorted(
            zip(nodes, states, strict=True), key=lambda pair: -pair[0].node_id
        ):
            if node.terminal:
                below[node.node_id].append(self.outcome(state, question))
            if node.parent_id != NO_PARENT:
                below[node.parent_id] += below[node.node_id]
        return [_label(node, below[node.node_id]) for node in nodes]


def _label(node: TreeNode, outcomes: Sequence[Outcome]) -> Label:
    totals = [outcome.total for outcome in outcomes if outcome.total is not None]
    if not totals or node.action == "invalid" or node.parent_id == NO_PARENT:
        return Label(None, len(totals))
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.components)
    components = tuple(
        Component(name=name, value=_mean([o.components.get(name) for o in outcomes]))
        for name in names
    )
    return Label(fmean(totals), len(totals), components)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
