"""One policy on one question set: many trajectories in flight, a row for each question."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from agent.concurrent_map import map_concurrently
from agent.environment import Environment
from agent.protocol import AgentProtocol
from agent.state import State
from base.errors import EndpointError, RetrievalError
from engines.sampling import Sampling
from evaluation.scoring import score_failure, score_trajectory
from storage.records import FailedPrediction, Failure, Prediction, Question

__all__ = ["Begin", "Evaluated", "evaluate", "score_trajectory"]

Begin = Callable[[Question], Awaitable[State]]
"""The state that a question's trajectory starts from; may search."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Results of one policy on a set, in the order of the questions.

    Attributes:
        unanswered: the questions of `failures`, as tables count them.
        skipped: Number of questions that the protocol cannot take, by reason.
        pending: questions that were not admitted any more, or that a limit stopped.
    """

    predictions: list[Prediction]
    failures: list[Failure]
    unanswered: list[FailedPrediction]
    skipped: Mapping[str, int]
    pending: int = 0


def askable(
    questions: Iterable[Question], protocol: AgentProtocol
) -> tuple[list[Question], Counter[str]]:
    """Returns the questions that a protocol can take, and the number that it cannot, by reason."""
    reasons = [(question, protocol.unfit(question)) for question in questions]
    asked = [question for question, why in reasons if why is None]
    return asked, Counter(why for _, why in reasons if why is not None)


async def evaluate(
    questions: Sequence[Question],
    environment: Environment,
    *,
    policy: str,
    sampling: Sampling,
    begin: Begin | None = None,
    path: str = "eval",
    draw: int = 0,
    max_in_flight: int = 64,
    admit: Callable[[], bool] = lambda: True,
    on_start: Callable[[], None] = lambda: None,
    on_done: Callable[[Prediction | Failure | None], None] = lambda row: None,
) -> Evaluated:
    """Answers every question once and scores the answers.

    Args:
        environment: the policy's; its seed continues every row.
        policy: the name that tables show.
        sampling: Sampling of the answers (temperature 0 is greedy).
        begin: Start state of trajectories; None for the protocol's own root.
        path, draw: Identity of the calls in the ledger; another draw is a fresh call.
        max_in_flight: questions worked on at a time.
        admit: Called before each question; once it returns False, no further question starts.
        on_start, on_done: called as a question starts, and with its row (progress); None if
            a limit stopped it.

    Raises:
        EndpointError: If a fatal one; a fault of a single question is a `Failure`.
    """
    exam = _EvaluationRun(environment, policy, sampling, begin or environment.root, path, draw)
    asked, skipped = askable(questions, environment.protocol)

    async def answered(place: int) -> tuple[int, Prediction | Failure]:
        on_start()
        row: Prediction | Failure | None = None
        try:
            row = await exam.answer(asked[place])
        finally:
            on_done(row)
        return place, row

    admitted = takewhile(lambda _: admit(), range(len(asked)))
    rows = sorted(
        [found async for found in map_concurrently(admitted, answered, max_in_flight)],
        key=lambda found: found[0],
    )
    failed = [(asked[place], row) for place, row in rows if isinstance(row, Failure)]
    return Evaluated(
        predictions=[row for _, row in rows if isinstance(row, Prediction)],
        failures=[row for _, row in failed],
        unanswered=[score_failure(question, seed=environment.seed) for question, _ in failed],
        skipped=skipped,
        pending=len(asked) - len(rows),
    )


@dataclass(frozen=True, slots=True)
class _EvaluationRun:
    """How one policy answers; the arguments of `evaluate`."""

    environment: Environment
    policy: str
    sampling: Sampling
    begin: Begin
    path: str
    draw: int

    async def answer(self, question: Question) -> Prediction | Failure:
        """Answers a question; a fault of this question alone is a `Failure`."""
        try:
            root = await self.begin(question)
            trajectory = await self.environment.trajectory(
                root, self.sampling, question_id=question.id, path=self.path, draw=self.draw
            )
        except (EndpointError, RetrievalError) as error:
            if isinstance(error, EndpointError) and error.fatal:
                raise
            return Failure.of(question.id, f"eval {self.policy}", error)
        return score_trajectory(
            question,
            trajectory,
            self.environment,
            policy=self.policy,
        )
