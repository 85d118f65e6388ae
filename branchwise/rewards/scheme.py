"""The interface of a reward scheme.

A scheme is built from a recipe, which names it in `rewards: {scheme: …}`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Protocol, TypeVar

from branchwise.agent import AgentProtocol, AgentSettings, State
from branchwise.base import Registry, known_mean
from branchwise.engines import Engine, JudgeSettings
from branchwise.mcts import SearchSettings, TreeSettings
from branchwise.types import NO_PARENT, Component, Question, Rollout, TreeNode

from .outcome import Label, Outcome, Verdicts
from .settings import SchemeSettings


class RecipeFacts(Protocol):
    """The part of a recipe that schemes read."""

    seed: int
    agent: AgentSettings
    mcts: SearchSettings
    rewards: SchemeSettings
    verifier: JudgeSettings | None
    pairs: Any  # `annotation.PairSettings`, of a higher room


@dataclass(frozen=True, slots=True)
class NodeEvaluation:
    """The facts about one node.

    Attributes:
        value: Value that the search backs up; None without a score of judge or reward model.
        verdict: The verifier's verdict on a refusal, or None.
        unscored: Reason that the score of judge or reward model is missing.
    """

    value: float | None
    rollouts: tuple[Rollout, ...] = ()
    judge_score: float | None = None
    judge_text: str | None = None
    unscored: str | None = None
    verdict: bool | None = None


class RewardScheme(ABC):
    """A reward system under the settings of one recipe.

    Attributes:
        name: Value of `rewards.scheme`.
        settings_class: Class of the scheme's `rewards:` block.
        protocols: Protocols whose trajectories the scheme can read; empty for any.
        extras: Extras of pyproject.toml that the scheme needs.
        whole_reply: Whether a step's whole text is rewarded, not only its content. If so, siblings
            are equal only if their texts are.
        asks_verifier: Whether the recipe's verifier judges refusals.
        by_answer: Whether answers alone decide, in [0, 1]. If so, rollouts, which keep nothing
            else, can make labels and test them.
        learnable: Whether a reward model can learn the scheme (see `weights`).
        stages: Values of `rewards.stage` that a curriculum goes through.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[SchemeSettings]] = SchemeSettings
    settings: SchemeSettings
    protocols: ClassVar[tuple[str, ...]] = ()
    extras: ClassVar[tuple[str, ...]] = ()
    whole_reply: ClassVar[bool] = False
    asks_verifier: ClassVar[bool] = False
    by_answer: ClassVar[bool] = False
    learnable: ClassVar[bool] = False
    stages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, recipe: RecipeFacts, verifier: Engine | None = None) -> None:
        """Binds the scheme to a recipe; loads nothing.

        Args:
            verifier: Open engine of the recipe's verifier; None if stored verdicts suffice.
        """
        self.recipe = recipe
        self.settings = recipe.rewards
        self.verifier = verifier

    @property
    def resolved(self) -> SchemeSettings:
        """Settings with the defaults filled in that depend on other blocks of the recipe."""
        return self.settings

    def problems(self) -> Iterator[str]:
        """Yields the reasons that the recipe does not work with this scheme, each with a remedy."""
        search, protocol = self.recipe.mcts, self.recipe.agent.protocol
        name = self.settings.scheme
        if self.protocols and protocol not in self.protocols:
            names = " or ".join(self.protocols)
            yield (
                f"rewards.scheme: {name} rewards the protocol {names}, but agent.protocol is "
                f"`{protocol}`; set agent.protocol: {names}, or use another scheme"
            )
        if self.by_answer:
            return
        if isinstance(search, TreeSettings) and search.evaluator not in {"playout", "reward_model"}:
            yield (
                f"rewards.scheme: {name} rewards every step of a trajectory, but "
                f"mcts.evaluator is `{search.evaluator}`, which stores no steps; set "
                "mcts.evaluator: playout, or mcts.kind: chains"
            )
        if isinstance(search, TreeSettings) and not search.normalise:
            yield f"rewards.scheme: {name} gives values outside [0, 1]; set mcts.normalise: true"
        if self.recipe.pairs.invalid == "rejected":
            yield f"rewards.scheme: {name} does not label invalid steps; set pairs.invalid: drop"

    def inputs(self) -> dict[str, str]:
        """Returns digests of everything outside the recipe that affects rewards."""
        return {}

    def describe(self) -> str:
        """Describes the labels for the dataset card, in one line: name and changed settings."""
        changed = self.settings.model_dump(mode="json", exclude_defaults=True, exclude={"scheme"})
        return ", ".join([f"`{self.name}`", *(f"`{k}: {v}`" for k, v in changed.items())])

    @abstractmethod
    def outcome(self, state: State, question: Question) -> Outcome:
        """Scores a finished trajectory."""

    async def finished(self, question: Question, state: State, path: str) -> NodeEvaluation:
        """Values a terminal state for the search; `path` names its node in the ledger."""
        return NodeEvaluation(self.outcome(state, question).total)

    def judged(self, score: float, state: State) -> float:
        """Turns a judge's score of a state, in [0, 1], into a value for the search."""
        return score

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        """Labels a stored tree: one label per node, in order of `node_id`.

        By default, a step is worth the mean outcome of the final states below it.
        """
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

    @classmethod
    def verdicts(cls, question: Question, protocol: AgentProtocol, state: State) -> Verdicts | None:
        """Checks a finished trajectory against the rules of one of the scheme's protocols.

        Evaluations of any policy report this; None if an action that is not invalid suffices.
        """
        return None

    def rollout_value(self, rollout: Rollout, golds: Sequence[str]) -> float | None:
        """Values a stored rollout; None if it does not count, as in schemes without `by_answer`."""
        return None

    def weights(self, t: int) -> Mapping[str, float]:
        """Returns the weights of the components at policy call `t`; empty unless `learnable`."""
        return {}


def _label(node: TreeNode, outcomes: Sequence[Outcome]) -> Label:
    totals = [outcome.total for outcome in outcomes if outcome.total is not None]
    if not totals or node.action == "invalid" or node.parent_id == NO_PARENT:
        return Label(None, len(totals))
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.components)
    components = tuple(
        Component(name=name, value=known_mean(o.components.get(name) for o in outcomes))
        for name in names
    )
    return Label(fmean(totals), len(totals), components)


S = TypeVar("S", bound=RewardScheme)

SCHEMES: Registry[type[RewardScheme]] = Registry("reward scheme", "branchwise.rewards.schemes")
"""Reward schemes by their name in `rewards: {scheme: …}`."""


def register_reward(scheme: type[S]) -> type[S]:
    """Class decorator: adds a reward scheme under its `name`.

    Raises:
        ConfigError: If another scheme has the name.
    """
    SCHEMES.add(scheme.name, scheme, scheme.__module__)
    return scheme
