"""Rewards of whole trajectories as reward schemes: ARENA, R1-Searcher, Eval-RAR.

A node's label is the mean outcome of the distinct finished trajectories at or below it. The outcome
is computed from the text of every call, which an evaluator's rollouts do not store, so the search
must keep every step as a node. The cost of an invalid step counts for the steps before it; the step
itself is unlabelled.
"""

from abc import abstractmethod
from typing import Any, ClassVar

from branchwise.agent import AgentProtocol, State, protocol_of
from branchwise.types import Question

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
