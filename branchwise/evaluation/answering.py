"""Runs a policy on a question set, and collects its scored predictions and failures."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from branchwise.agent import AgentProtocol, AgentSettings, Environment, State, protocol_of
from branchwise.base import BranchwiseError
from branchwise.engines import ModelSettings, Sampling
from branchwise.types import FailedPrediction, Failure, Prediction, Question

from .prediction_scoring import score_failure, score_trajectory

Begin = Callable[[Question], Awaitable[State]]
"""The state that a question's trajectory starts from; may search."""


@dataclass(frozen=True)
class PolicyUnderTest:
    """A policy that answers questions: of an evaluation, of a rating, or for a baseline.

    Attributes:
        temperature: Sampling temperature, instead of the model's own; 0 is greedy.
    """

    model: ModelSettings
    agent: AgentSettings
    temperature: float

    @cached_property
    def protocol(self) -> AgentProtocol:
        """The protocol of `agent`."""
        return protocol_of(self.agent)

    @property
    def sampling(self) -> Sampling:
        """Sampling settings of its answers."""
        return Sampling.of(self.model, self.temperature)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Results of one policy on a set, in the order of the questions.

    Attributes:
        unanswered: Questions of `failures`, as tables count them.
        skipped: Number of questions that the protocol cannot take, by reason.
        pending: Number of questions that a limit stopped.
    """

    predictions: list[Prediction]
    failures: list[Failure]
    unanswered: list[FailedPrediction]
    skipped: Mapping[str, int]
    pending: int = 0

    @classmethod
    def of(
        cls,
        answerer: "Answerer",
        results: Iterable[tuple[Question, Prediction | BranchwiseError]],
        skipped: Mapping[str, int],
        pending: int = 0,
    ) -> "Evaluated":
        """Collects predictions and faults, in their order."""
        predictions, failures, unanswered = [], [], []
        stage, seed = f"eval {answerer.policy}", answerer.environment.seed
        for question, result in results:
            if isinstance(result, Prediction):
                predictions.append(result)
            else:
                failures.append(Failure.of(question.id, stage, result))
                unanswered.append(score_failure(question, seed=seed))
        return cls(predictions, failures, unanswered, skipped, pending)


def fitting_questions(
    questions: Iterable[Question], protocol: AgentProtocol
) -> tuple[list[Question], Counter[str]]:
    """Returns the questions that a protocol can take, and the number that it cannot, by reason."""
    reasons = [(question, protocol.unfit(question)) for question in questions]
    fit = [question for question, reason in reasons if reason is None]
    return fit, Counter(reason for _, reason in reasons if reason is not None)


@dataclass(frozen=True, slots=True)
class Answerer:
    """How one policy answers.

    Attributes:
        environment: Environment of the policy; its seed is copied to every row.
        policy: Name in tables.
        sampling: Sampling of the answers (temperature 0 is greedy).
        begin: Start state of trajectories; None for the protocol's own root.
        path, draw: Identity of the calls in the ledger; another draw is a fresh call.
    """

    environment: Environment
    policy: str
    sampling: Sampling
    begin: Begin | None = None
    path: str = "eval"
    draw: int = 0

    async def answer(self, question: Question) -> Prediction:
        """Answers a question and scores the answer.

        Raises:
            EndpointError, RetrievalError: If a call or a search fails.
        """
        root = await (self.begin or self.environment.root)(question)
        trajectory = await self.environment.trajectory(
            root, self.sampling, question_id=question.id, path=self.path, draw=self.draw
        )
        return score_trajectory(question, trajectory, self.environment, policy=self.policy)
