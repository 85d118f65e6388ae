"""Baselines: what each reader is shown, how its rows count, and the most frequent answer."""

import json
from typing import Any

import pytest
from scripted_engine import ScriptedEngine, ScriptedRetriever

from agent.environment import Environment
from agent.reading import Reading
from agent.settings import AgentSettings
from engines.sampling import SampleRequest, Sampling, Usage
from evaluation.baselines import (
    answer_alike,
    gold_passages,
    majority_answers,
    one_search,
    supporting,
)
from evaluation.run import Begin, evaluate, from_question
from storage.errors import RetrievalError
from storage.records import Paragraph, Passage, Prediction, Question, RetrievedPassage

CORPUS = {
    name: Passage(id=name, title=name.upper(), text=f"text of {name}") for name in ("a", "b", "c")
}


def reading() -> ScriptedEngine:
    """Answers with the last passage that it is shown."""

    def reply(request: SampleRequest) -> str:
        shown = [line for line in request.messages[-1].content.splitlines() if "text of" in line]
        return f"<answer>{shown[-1][-11] if shown else 'nothing'}</answer>"

    return ScriptedEngine(reply, usage=Usage(10, 0, 2))


def a_and_b(query: str) -> list[RetrievedPassage]:
    """For everything, whatever is needed."""
    if "broken" in query:
        raise RetrievalError("the search server is gone")
    return [RetrievedPassage(**CORPUS[name].model_dump(), score=1.0) for name in ("a", "b")]


def question(qid: str = "q", *answers: str, **changes: Any) -> Question:
    given = {"source": "nq", "supporting_ids": ("b", "c"), "answers": answers or ("c",)}
    return Question.model_validate({"id": qid, "question": f"{qid}?", **given, **changes})


async def asked(
    begin: Begin, reader: ScriptedEngine, *questions: Question, draw: int = 0
) -> list[Prediction]:
    environment = Environment(
        Reading(), reader, ScriptedRetriever(a_and_b), AgentSettings(), top_k=3, seed=7
    )
    found = await evaluate(
        questions or [question()],
        environment,
        policy="it",
        sampling=Sampling(temperature=0.0),
        begin=begin,
        path="eval/it",
        draw=draw,
    )
    return found.predictions


async def test_closed_book_sees_the_question_alone() -> None:
    reader = reading()
    (row,) = await asked(from_question, reader, draw=2)
    assert (row.prediction, row.em) == ("nothing", 0.0)
    assert (row.steps, row.searches, row.supporting_recall) == (1, 0, 0.0)
    (request,) = reader.asked
    assert (request.identity.path, request.identity.draw) == ("eval/it+0", 2)
    assert request.structure is not None


async def test_one_shot_searches_once_with_the_question() -> None:
    reader, shelf = reading(), ScriptedRetriever(a_and_b)
    (row,) = await asked(one_search(shelf, 2), reader)
    assert shelf.queries == [("q?", 2)]
    assert (row.prediction, row.em) == ("b", 0.0)
    assert (row.steps, row.searches, row.valid_searches) == (1, 1, 1), "a search is no step"
    assert row.supporting_recall == 0.5
    assert (row.forced, row.format_ok, row.output_tokens) == (False, True, 2)
    search, answer = json.loads(row.trajectory)
    assert [one["id"] for one in search["passages"]] == ["a", "b"]
    assert (answer["action"], answer["content"]) == ("answer", "b")


async def test_a_search_that_fails_is_a_failed_question() -> None:
    environment = Environment(
        Reading(), reading(), ScriptedRetriever(a_and_b), AgentSettings(), top_k=3
    )
    found = await evaluate(
        [question("broken"), question("whole")],
        environment,
        policy="one-shot",
        sampling=Sampling(),
        begin=one_search(ScriptedRetriever(a_and_b), 2),
    )
    assert [row.question_id for row in found.predictions] == ["whole"]
    assert [(f.question_id, f.stage, f.kind) for f in found.failures] == [
        ("broken", "eval one-shot", "RetrievalError")
    ]


async def test_the_oracle_is_shown_the_gold_passages() -> None:
    reader = reading()
    (row,) = await asked(gold_passages(CORPUS), reader)
    assert (row.prediction, row.em, row.supporting_recall, row.steps) == ("c", 1.0, 1.0, 1)
    shown = reader.asked[0].messages[-1].content
    assert [name for name in CORPUS if f"text of {name}" in shown] == ["b", "c"]


def test_supporting_passages() -> None:
    paragraphs = (
        Paragraph(title="D", text="distractor", id="d"),
        Paragraph(title="S", text="says so", is_supporting=True, id="s"),
        Paragraph(title="E", text=" ", is_supporting=True),
        Paragraph(title="T", text="too", is_supporting=True),
    )
    known = question(paragraphs=paragraphs)
    assert [p.id for p in supporting(known, CORPUS)] == ["b", "c"]
    lost = question(supporting_ids=("x",), paragraphs=paragraphs)
    assert [(p.id, p.text) for p in supporting(lost, CORPUS)] == [("s", "says so"), ("q#1", "too")]
    assert supporting(question(supporting_ids=(), paragraphs=paragraphs[:1]), CORPUS) == ()


def test_the_most_frequent_answer_of_each_source() -> None:
    others = [
        question("1", "The Rhine!"),
        question("2", "rhine", "Rhine", "Rhein"),
        question("3", "Rhein"),
        question("4", "Aare", source="2wiki"),
        question("5", "Zug", source="2wiki"),
        question("6", "The", source="popqa"),
    ]
    assert majority_answers(others) == {"nq": "rhein", "2wiki": "aare"}, "ties go by name"
    assert majority_answers([*others, question("7", "RHINE")])["nq"] == "rhine"


def test_everybody_is_told_the_same() -> None:
    exam = [
        question("1", "Rhine"),
        question("2", "the River Rhine", source="2wiki"),
        question("3", "Rhine", source="popqa"),
        question("4", "Rhine", answerable=False),
    ]
    told = answer_alike(exam, {"nq": "rhine", "2wiki": "rhine"}, policy="majority", seed=3)
    assert [(p.question_id, p.em, p.f1) for p in told.predictions] == [
        ("1", 1.0, 1.0),
        ("2", 0.0, pytest.approx(2 / 3)),
    ]
    row = told.predictions[0]
    assert (row.policy, row.seed, row.steps, row.searches, row.output_tokens) == (
        ("majority", 3, 0, 0, 0)
    )
    assert (told.skipped, told.owed, told.failures) == (1, 0, [])
