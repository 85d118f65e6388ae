"""From questions to predictions, over the real environment and protocol."""

import asyncio
import json

import pytest
from scripted_engine import ScriptedEngine, ScriptedRetriever

from agent.environment import Environment
from agent.evo_rag import EvoRAG
from agent.protocol import AgentProtocol
from agent.reasonrag import ReasonRAG
from agent.settings import AgentSettings
from agent.state import State
from analysis.comparison import compare
from base.errors import BudgetExceeded, EndpointError
from engines.sampling import Capabilities, SampleRequest, Sampling, Usage
from evaluation.run import evaluate
from evaluation.scoring import valid_searches
from storage.records import Failure, Prediction, Question, RetrievedPassage


def script(replies: dict[str, list[str | Exception]]) -> ScriptedEngine:
    """Replies by the question's id and the number of its call."""
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
    spoken = protocol(AgentSettings(max_steps=max_steps))
    return Environment(spoken, script(replies), ScriptedRetriever(by_first_letter), top_k=1, seed=7)


SAMPLING = Sampling(temperature=0.0)


async def test_a_trajectory_becomes_a_row() -> None:
    replies: list[str | Exception] = [
        "<query>A city</query>",
        "<evidence>none</evidence>",
        "<query>the a city!</query>",
        "<evidence>Paris</evidence>",
        "<answer>Paris, France</answer>",
    ]
    found = await evaluate(
        [question("q")], environment({"q": replies}), policy="dpo", sampling=SAMPLING
    )
    (row,) = found.predictions
    assert (row.policy, row.policy_digest, row.seed) == ("dpo", "digest", 7)
    assert row.latency_s == 5 * 0.25, "of the calls, so that a replay gives the same row"
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


async def test_bad_ends_score_zero_and_bad_questions_are_rows() -> None:
    replies: dict[str, list[str | Exception]] = {
        "forced": ["<query>A</query>", "<answer>Paris</answer>"],
        "invalid": ["no tag at all"],
        "broken": [EndpointError("500", attempts=4)],
        "stopped": [BudgetExceeded("limits.max_tokens 10 reached")],
    }
    asked = [question("forced"), question("gone", answerable=False), question("invalid")]
    done: list[str] = []
    found = await evaluate(
        [*asked, question("broken"), question("stopped")],
        environment(replies, max_steps=2),
        policy="p",
        sampling=SAMPLING,
        max_in_flight=2,
        on_done=lambda row: done.append(row.question_id if row else "none"),
    )
    forced, invalid = found.predictions
    assert (forced.question_id, forced.forced, forced.em) == ("forced", True, 1.0)
    assert (invalid.prediction, invalid.em, invalid.format_ok) == (None, 0.0, False)
    (failed,) = found.failures
    assert (failed.question_id, failed.stage, failed.kind) == ("broken", "eval p", "EndpointError")
    assert failed.attempts == 4
    assert [(u.question_id, u.em, u.guessable) for u in found.unanswered] == [
        ("broken", 0.0, False)
    ]
    assert (found.skipped, found.pending) == ({"unanswerable": 1}, 1)
    assert sorted(done) == ["broken", "forced", "invalid", "none"]


async def test_rows_come_in_the_order_of_the_questions() -> None:
    names = ["q3", "q1", "q2", "q0"]
    admitted, second_done, done = iter([True, True, True, False]), asyncio.Event(), list[str]()

    async def first_is_last(asked: Question) -> State:
        if asked.id == "q3":
            await second_done.wait()
        return State(asked.question)

    def note(row: Prediction | Failure | None) -> None:
        done.append(row.question_id if row else "none")
        if done[-1] == "q2":
            second_done.set()

    found = await evaluate(
        [question(name) for name in names],
        environment({name: ["<answer>Paris</answer>"] for name in names}),
        policy="p",
        sampling=SAMPLING,
        begin=first_is_last,
        max_in_flight=3,
        admit=lambda: next(admitted),
        on_done=note,
    )
    assert done == ["q1", "q2", "q3"]
    assert [row.question_id for row in found.predictions] == ["q3", "q1", "q2"]
    assert found.pending == 1


async def test_where_a_policy_can_refuse_it_is_asked_what_has_no_answer() -> None:
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
    found = await evaluate(
        asked, environment(replies, protocol=EvoRAG), policy="p", sampling=SAMPLING
    )
    known, unknown, guessed = found.predictions
    assert (known.em, known.searches, known.valid_searches, known.backtracks) == (1.0, 2, 2, 1)
    assert (known.supporting_recall, known.refused, known.format_ok) == (1.0, False, True)
    assert (unknown.em, unknown.refused, unknown.searches, unknown.backtracks) == (None, True, 1, 0)
    assert (guessed.em, guessed.refused, guessed.prediction) == (None, False, "Paris")
    assert not found.skipped
    (whole, *_) = compare({"p": found.predictions}).rows
    assert (whole.n, whole.answerable, whole.means["em"]) == (3, 1, 1.0)
    assert (whole.means["refusal_precision"], whole.means["refusal_recall"]) == (1.0, 0.5)


async def test_a_fatal_fault_ends_the_evaluation() -> None:
    replies: dict[str, list[str | Exception]] = {"q": [EndpointError("401", fatal=True)]}
    with pytest.raises(EndpointError, match="401"):
        await evaluate([question("q")], environment(replies), policy="p", sampling=SAMPLING)


def test_valid_searches() -> None:
    assert valid_searches([]) == 0
    assert valid_searches(["Who?", "who", "the who!", "?!", "Where"]) == 2
