"""Evaluation of questions with the real environment and protocol."""

import json

import pytest
from agent_protocols import agent_settings
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.evo_rag import EvoRAG
from branchwise.agent.protocol import AgentProtocol
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.analysis.comparison import compare
from branchwise.base.errors import BranchwiseError, EndpointError
from branchwise.engines.sampling import Capabilities, SampleRequest, Sampling, Usage
from branchwise.evaluation.answering import Answerer, Evaluated, fitting_questions
from branchwise.evaluation.prediction_scoring import valid_searches
from branchwise.types import Prediction, Question, RetrievedPassage


def script(replies: dict[str, list[str | Exception]]) -> ScriptedEngine:
    """Engine that returns each question's replies in order, and raises those that are errors."""
    left = {key: iter(texts) for key, texts in replies.items()}

    def reply(request: SampleRequest) -> str:
        said = next(left[request.identity.question_id])
        if isinstance(said, Exception):
            raise said
        return said

    return ScriptedEngine(reply, capabilities=Capabilities(), usage=Usage(10, 4, 2))


def by_first_letter(query: str) -> list[RetrievedPassage]:
    return [RetrievedPassage(id="p-" + query[:1], title="T", text="…", score=1.0)]


def question(qid: str, *, answerable: bool = True) -> Question:
    return Question(
        id=qid,
        source="atlas",
        question=f"{qid}?",
        answers=("Paris",) if answerable else (),
        answerable=answerable,
        supporting_ids=("p-A", "p-Z"),
    )


def environment(
    replies: dict[str, list[str | Exception]],
    max_steps: int = 6,
    protocol: type[AgentProtocol] = ReasonRAG,
) -> Environment:
    spoken = protocol(agent_settings(max_steps=max_steps))
    return Environment(spoken, script(replies), ScriptedRetriever(by_first_letter), top_k=1, seed=7)


SAMPLING = Sampling(temperature=0.0)


async def test_a_row_has_the_figures_of_its_trajectory() -> None:
    replies: list[str | Exception] = [
        "<query>A city</query>",
        "<evidence>none</evidence>",
        "<query>the a city!</query>",
        "<evidence>Paris</evidence>",
        "<answer>Paris, France</answer>",
    ]
    row = await Answerer(environment({"q": replies}), "dpo", SAMPLING).answer(question("q"))
    assert (row.policy, row.policy_digest, row.seed) == ("dpo", "digest", 7)
    assert row.latency_s == 5 * 0.25, "the sum over calls, so that a replay gives the same row"
    assert (row.prediction, row.em, row.cover_em) == ("Paris, France", 0.0, 1.0)
    assert row.guessable is False
    assert row.f1 == pytest.approx(2 / 3)
    assert (row.steps, row.searches, row.valid_searches) == (5, 2, 1)
    assert (row.forced, row.refused, row.format_ok) == (False, False, True)
    assert row.supporting_recall == 0.5
    assert (row.input_tokens, row.cached_tokens, row.output_tokens) == (50, 20, 10)
    steps = json.loads(row.trajectory)
    assert [step["action"] for step in steps] == [
        "query",
        "evidence",
        "query",
        "evidence",
        "answer",
    ]
    assert steps[0]["passages"] == [{"id": "p-A", "title": "T", "score": 1.0}]


async def test_failed_and_invalid_questions_score_zero_and_are_counted() -> None:
    replies: dict[str, list[str | Exception]] = {
        "forced": ["<query>A</query>", "<answer>Paris</answer>"],
        "invalid": ["no tag at all"],
    }
    answering = Answerer(environment(replies, max_steps=2), "p", SAMPLING)
    asked = [question("forced"), question("gone", answerable=False), question("invalid")]
    taken, skipped = fitting_questions(asked, answering.environment.protocol)
    rows: list[tuple[Question, Prediction | BranchwiseError]]
    rows = [(one, await answering.answer(one)) for one in taken]
    rows.insert(1, (question("broken"), EndpointError("500", attempts=4)))
    found = Evaluated.of(answering, rows, skipped, pending=1)
    forced, invalid = found.predictions
    assert (forced.question_id, forced.forced, forced.em) == ("forced", True, 1.0)
    assert (invalid.prediction, invalid.em, invalid.format_ok) == (None, 0.0, False)
    (failed,) = found.failures
    assert (failed.question_id, failed.stage, failed.kind) == ("broken", "eval p", "EndpointError")
    assert failed.attempts == 4
    (unanswered,) = found.unanswered
    assert (unanswered.question_id, unanswered.em, unanswered.seed) == ("broken", 0.0, 7)
    assert unanswered.guessable is False
    assert (found.skipped, found.pending) == ({"unanswerable": 1}, 1)


async def test_unanswerable_questions_are_evaluated_if_the_policy_can_refuse() -> None:
    replies: dict[str, list[str | Exception]] = {
        "known": [
            "<search>A city</search>",
            "<note>nothing</note><backtrack/>",
            "<search>Z city</search>",
            "<note>Paris</note><answer>Paris</answer>",
        ],
        "unknown": ["<search>A city</search>", "<note>nothing</note><refuse/>"],
        "guessed": ["<answer>Paris</answer>"],
    }
    asked = [question(name, answerable=name == "known") for name in replies]
    answering = Answerer(environment(replies, protocol=EvoRAG), "p", SAMPLING)
    assert fitting_questions(asked, answering.environment.protocol) == (asked, {})
    known, unknown, guessed = rows = [await answering.answer(one) for one in asked]
    assert (known.em, known.searches, known.valid_searches, known.backtracks) == (1.0, 2, 2, 1)
    assert (known.supporting_recall, known.refused, known.format_ok) == (1.0, False, True)
    assert (unknown.em, unknown.refused, unknown.searches, unknown.backtracks) == (None, True, 1, 0)
    assert (guessed.em, guessed.refused, guessed.prediction) == (None, False, "Paris")
    (whole, *_) = compare({"p": rows}).rows
    assert (whole.n, whole.answerable, whole.means["em"]) == (3, 1, 1.0)
    assert (whole.means["refusal_precision"], whole.means["refusal_recall"]) == (1.0, 0.5)


def test_valid_searches_count_distinct_nonempty_queries() -> None:
    assert valid_searches([]) == 0
    assert valid_searches(["Who?", "who", "the who!", "?!", "Where"]) == 2
