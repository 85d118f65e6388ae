"""Baselines: the input of each reader, the figures of its rows, and the majority answer."""

import json
from typing import Any

import pytest
from agent_protocols import agent_settings
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.protocols import protocol_of
from branchwise.base.errors import RetrievalError
from branchwise.engines.sampling import SampleRequest, Sampling, Usage
from branchwise.evaluation.answering import Answerer
from branchwise.evaluation.baselines import BASELINES, Material, majority_answers, supporting
from branchwise.types import Paragraph, Passage, Prediction, Question, RetrievedPassage

CORPUS = {
    name: Passage(id=name, title=name.upper(), text=f"text of {name}") for name in ("a", "b", "c")
}


def last_passage_reader() -> ScriptedEngine:
    """Engine that answers with the name of the last passage in its prompt."""

    def reply(request: SampleRequest) -> str:
        shown = [line for line in request.messages[-1].content.splitlines() if "text of" in line]
        return f"<answer>{shown[-1][-11] if shown else 'nothing'}</answer>"

    return ScriptedEngine(reply, usage=Usage(10, 0, 2))


def a_and_b(query: str) -> list[RetrievedPassage]:
    """Returns passages a and b for every query; raises if the query contains `broken`."""
    if "broken" in query:
        raise RetrievalError("the search server is gone")
    return [RetrievedPassage(**CORPUS[name].model_dump(), score=1.0) for name in ("a", "b")]


def question(qid: str = "q", *answers: str, **changes: Any) -> Question:
    given = {"source": "nq", "supporting_ids": ("b", "c"), "answers": answers or ("c",)}
    return Question.model_validate({"id": qid, "question": f"{qid}?", **given, **changes})


async def asked(
    name: str,
    reader: ScriptedEngine,
    *questions: Question,
    shelf: ScriptedRetriever | None = None,
    unevaluated: tuple[Question, ...] = (),
    draw: int = 0,
) -> list[Prediction]:
    """Returns a baseline's answers to the questions that it supports."""
    retriever = shelf or ScriptedRetriever(a_and_b)
    baseline = BASELINES[name](Material(CORPUS, retriever, 2, lambda: unevaluated))
    protocol = protocol_of(agent_settings("reading", max_steps=1))
    answering = Answerer(
        Environment(protocol, reader, retriever, top_k=3, seed=7),
        name,
        Sampling(temperature=0.0),
        begin=baseline.begin,
        path=f"eval/{name}",
        draw=draw,
    )
    can_be_asked = filter(baseline.can_be_asked, questions or (question(),))
    return [await answering.answer(one) for one in can_be_asked]


async def only_row(name: str, reader: ScriptedEngine, **more: Any) -> Prediction:
    (row,) = await asked(name, reader, **more)
    return row


async def test_closed_book_gets_only_the_question() -> None:
    reader = last_passage_reader()
    row = await only_row("closed-book", reader, draw=2)
    assert (row.prediction, row.em) == ("nothing", 0.0)
    assert (row.steps, row.searches, row.supporting_recall) == (1, 0, 0.0)
    assert not row.forced, "its budget is always one step"
    (request,) = reader.asked
    assert (request.identity.path, request.identity.draw) == ("eval/closed-book+0", 2)
    assert request.structure is not None


async def test_one_shot_searches_once_with_the_question() -> None:
    reader, shelf = last_passage_reader(), ScriptedRetriever(a_and_b)
    row = await only_row("one-shot", reader, shelf=shelf)
    assert shelf.queries == [("q?", 2)]
    assert (row.prediction, row.em) == ("b", 0.0)
    assert (row.steps, row.searches) == (1, 0), "the policy did not search"
    assert row.supporting_recall == 0.5
    assert (row.forced, row.format_ok, row.output_tokens) == (False, True, 2)
    search, answer = json.loads(row.trajectory)
    assert [one["id"] for one in search["passages"]] == ["a", "b"]
    assert (answer["action"], answer["content"]) == ("answer", "b")


async def test_a_failed_search_fails_the_question() -> None:
    with pytest.raises(RetrievalError, match="the search server is gone"):
        await asked("one-shot", last_passage_reader(), question("broken"))


async def test_oracle_gets_the_gold_passages() -> None:
    reader = last_passage_reader()
    row = await only_row("oracle", reader)
    assert (row.prediction, row.em, row.supporting_recall, row.steps) == ("c", 1.0, 1.0, 1)
    shown = reader.asked[0].messages[-1].content
    assert [name for name in CORPUS if f"text of {name}" in shown] == ["b", "c"]


def test_supporting_passages_come_from_the_corpus_or_the_paragraphs() -> None:
    paragraphs = (
        Paragraph(title="D", text="distractor", id="d"),
        Paragraph(title="S", text="says so", is_supporting=True, id="s"),
        Paragraph(title="E", text=" ", is_supporting=True),
        Paragraph(title="T", text="too", is_supporting=True),
    )
    known = question(paragraphs=paragraphs)
    assert [p.id for p in supporting(known, CORPUS)] == ["b", "c"]
    lost = question(supporting_ids=("x",), paragraphs=paragraphs)
    assert [(p.id, p.text) for p in supporting(lost, CORPUS)] == [("s", "says so"), ("q#3", "too")]
    assert supporting(question(supporting_ids=(), paragraphs=paragraphs[:1]), CORPUS) == ()


def test_majority_is_the_most_frequent_answer_of_each_source() -> None:
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


async def test_majority_answers_are_scored_without_an_engine_call() -> None:
    exam = [
        question("1", "Rhine"),
        question("2", "the River Rhine", source="2wiki"),
        question("3", "Rhine", source="popqa"),
    ]
    others = (question("5", "Rhine"), question("6", "Rhine", source="2wiki"))
    reader = last_passage_reader()
    told = await asked("majority", reader, *exam, unevaluated=others)
    assert [(p.question_id, p.em, p.f1) for p in told] == [
        ("1", 1.0, 1.0),
        ("2", 0.0, pytest.approx(2 / 3)),
    ]
    row = told[0]
    assert json.loads(row.trajectory)[-1]["text"] == "rhine", "a judge reads the last step"
    assert (row.policy, row.seed, row.steps, row.searches, row.output_tokens) == (
        ("majority", 7, 0, 0, 0)
    )
    assert reader.asked == []
