"""One finished trajectory as a row of `predictions`, with the verdicts of its protocol's rules."""

import json
from collections.abc import Sequence

from branchwise.agent import (
    INVALID,
    Action,
    AgentProtocol,
    Environment,
    State,
    Step,
    Trajectory,
    is_search,
)
from branchwise.rewards import (
    SCHEMES,
    AnswerScores,
    Verdicts,
    guessable,
    normalise,
    supporting_recall,
)
from branchwise.types import FailedPrediction, Prediction, Question


def score_trajectory(
    question: Question, trajectory: Trajectory, environment: Environment, *, policy: str
) -> Prediction:
    """Returns every metric of one policy's trajectory on one question.

    EM, F1 and cover-EM are None on unanswerable questions (refusal precision and recall are
    about those); otherwise a trajectory without an answer scores 0.

    Args:
        environment: Environment of the rollout.
        policy: the name that tables show.
    """
    state, usage = trajectory.state, trajectory.usage
    searches = [step for step in state.steps if is_search(step.action.kind)]
    served = [step.action.content for step in searches if step is not state.steps[-1]]
    scores = AnswerScores.in_benchmark(state.answer, question)
    return Prediction(
        question_id=question.id,
        source=question.source,
        type=question.type,
        hops=question.hops,
        guessable=guessable(question.question, question.answers),
        policy=policy,
        protocol=environment.protocol.name,
        policy_digest=environment.engine.digest,
        seed=environment.seed,
        prediction=state.answer,
        answers=question.answers,
        **scores._asdict(),
        steps=len(trajectory.moves),
        searches=len(searches),
        valid_searches=valid_searches(served),
        backtracks=sum(step.action.kind == "backtrack" for step in state.steps),
        forced=state.forced,
        refused=state.refused,
        **verdicts_of(question, environment.protocol, state)._asdict(),
        stop_reason=trajectory.stop_reason,
        supporting_recall=supporting_recall(
            (p.id for p in state.retrieved), question.supporting_ids
        ),
        trajectory=trajectory_json(state),
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        latency_s=sum(move.completion.latency_s for move in trajectory.moves),
    )


def score_failure(question: Question, *, seed: int) -> FailedPrediction:
    """Returns the scores of a question that failed; `seed` is the run's."""
    return FailedPrediction(
        question_id=question.id,
        source=question.source,
        type=question.type,
        seed=seed,
        **AnswerScores.in_benchmark(None, question)._asdict(),
        guessable=guessable(question.question, question.answers),
        hops=question.hops,
    )


def valid_searches(queries: Sequence[str]) -> int:
    """Counts the queries that are neither empty nor a repeat of an earlier one, once normalised."""
    return len({normalise(query) for query in queries} - {""})


def trajectory_json(state: State) -> str:
    """Returns the steps as a JSON list: stage, action, content, text, passages by reference.

    If passages were shown before the first call, the first element holds them (action "").
    """
    root = Step("root", "", Action("", ""), passages=state.given or ())
    steps = state.steps if state.given is None else (root, *state.steps)
    rows = [
        {
            "stage": step.stage,
            "action": step.action.kind,
            "content": step.action.content,
            "text": step.text,
            "forced": step.forced,
            "passages": [{"id": p.id, "title": p.title, "score": p.score} for p in step.passages],
        }
        for step in steps
    ]
    return json.dumps(rows, ensure_ascii=False)


def verdicts_of(question: Question, protocol: AgentProtocol, state: State) -> Verdicts:
    """Judges a finished trajectory by the rules of its protocol's reward scheme.

    Without such rules, the format is correct if no action is invalid.
    """
    for scheme in SCHEMES.values():
        if protocol.name in scheme.protocols:
            verdicts = scheme.verdicts(question, protocol, state)
            if verdicts is not None:
                return verdicts
    return Verdicts(all(step.action.kind != INVALID for step in state.steps))
