"""One finished trajectory as a row of `predictions`."""

import json
from collections.abc import Sequence

from agent.actions import is_search
from agent.environment import Trajectory
from agent.state import Action, State, Step
from rewards.answers import normalise, supporting_recall
from rewards.guessing import guessable
from rewards.outcome import AnswerScores
from storage.records import Prediction, Question, Unanswered


def score_trajectory(
    question: Question,
    trajectory: Trajectory,
    *,
    policy: str,
    protocol: str,
    digest: str,
    seed: int,
    latency_s: float,
) -> Prediction:
    """Every metric of one policy's trajectory on one question.

    EM, F1 and cover-EM are null on unanswerable questions (refusal precision and recall are
    about those); elsewhere a trajectory without an answer scores 0.

    Args:
        policy: the name that tables show; `digest` is its engine's.
        protocol: name of the protocol that it was asked in.
        seed: the run's seed.
        latency_s: seconds from the first call to the end.
    """
    state, usage = trajectory.state, trajectory.usage
    queries = [s.action.content for s in state.steps if is_search(s.action.kind)]
    scores = AnswerScores.in_benchmark(state.answer, question)
    return Prediction(
        question_id=question.id,
        source=question.source,
        type=question.type,
        hops=question.hops,
        guessable=guessable(question.question, question.answers),
        policy=policy,
        protocol=protocol,
        policy_digest=digest,
        seed=seed,
        prediction=state.answer,
        answers=question.answers,
        **scores._asdict(),
        steps=len(trajectory.moves),
        searches=len(queries),
        valid_searches=valid_searches(queries),
        backtracks=sum(step.action.kind == "backtrack" for step in state.steps),
        forced=state.forced,
        refused=state.refused,
        format_ok=all(step.action.kind != "invalid" for step in state.steps),
        supporting_recall=supporting_recall(
            (p.id for p in state.retrieved), question.supporting_ids
        ),
        trajectory=trajectory_json(state),
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        latency_s=latency_s,
    )


def score_failure(question: Question, *, seed: int) -> Unanswered:
    """The scores of a question that failed; `seed` is the run's."""
    return Unanswered(
        question_id=question.id,
        source=question.source,
        type=question.type,
        seed=seed,
        **AnswerScores.in_benchmark(None, question)._asdict(),
        guessable=guessable(question.question, question.answers),
    )


def valid_searches(queries: Sequence[str]) -> int:
    """How many queries are neither empty nor a repeat of an earlier one, once normalised."""
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
