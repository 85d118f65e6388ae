"""Evo-RAG traces with needless searches, over real retrieval: replayed, parsed and counted."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from sample_records import a_question
from scripted_engine import ScriptedEngine

from branchwise.agent.environment import Environment, Trajectory
from branchwise.agent.evo_rag import EvoRAG, live_searches, note_of
from branchwise.agent.state import State
from branchwise.engines.sampling import Sampling
from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.interface import Retriever
from branchwise.retrieval.settings import Bm25Settings
from branchwise.sources.atlas import build_corpus, build_questions
from branchwise.training.examples import StepExample
from branchwise.training.warm_start.evo_rag import NOTHING_FOUND
from branchwise.training.warm_start.hops import queries_about
from branchwise.training.warm_start.trace_builder import WASTEFUL, Habits
from branchwise.training.warm_start.traces import Traces, build_traces
from branchwise.types import Passage, Question

TOP_K = 2
PROTOCOL = EvoRAG()
ALWAYS = Habits(redundant=1, detour=1, backtrack=1, give_up=0)
NEVER = Habits()
PASSAGES = [
    Passage(id="lima", title="Lima", text="Lima is a city in Peru. It has a port."),
    Passage(id="lima-2", title="Lima Duarte", text="Lima Duarte is a town in Brazil."),
    Passage(id="peru", title="Peru", text="Peru lies in America. It pays with the Sol."),
    Passage(id="oslo", title="Oslo", text="Oslo is a city in Norway."),
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    return open_retriever(Bm25Settings(), PASSAGES, tmp_path_factory.mktemp("shelf"))


def two_hops(**changes: object) -> Question:
    hops = [
        {"queries": ["Lima"], "passage_id": "lima", "evidence": ["Lima is in Peru"]},
        {"queries": ["Peru money"], "passage_id": "peru", "evidence": ["Peru uses the Sol"]},
    ]
    fields = {
        "question": "Money of Lima?",
        "answers": ("Sol",),
        "supporting_titles": ("Lima", "Peru"),
        "extra": {"hops": hops},
    }
    return a_question(**{**fields, **changes})


def unanswerable(**changes: object) -> Question:
    fields = {"question": "Who is the mayor of Lima?", "answers": (), "answerable": False}
    return a_question(**{**fields, **changes})


async def traces_of(
    shelf: Retriever,
    *questions: Question,
    habits: Habits = ALWAYS,
    max_steps: int = 10,
    seed: int = 0,
) -> Traces:
    corpus = {p.id: p for p in PASSAGES}
    return await build_traces(
        questions, corpus, PROTOCOL.with_budget(max_steps), shelf, seed, TOP_K, habits=habits
    )


def unforced(traces: Traces) -> list[str]:
    """Returns the targets in order, without those that only show the forced-answer prompt."""
    forced = PROTOCOL.prompts["forced"]
    return [e.target for e in traces.examples if e.messages[0].content != forced]


async def test_the_shortest_trace_notes_the_evidence_of_each_search(shelf: Retriever) -> None:
    made = await traces_of(shelf, two_hops(), habits=NEVER)
    assert unforced(made) == [
        "<search>Lima</search>",
        "<note>Lima is in Peru</note><search>Peru money</search>",
        "<note>Peru uses the Sol</note><answer>Sol</answer>",
    ]
    assert made.counts["searches"] == made.counts["hops"] == 2


async def test_redundant_searches_and_detours_are_followed_by_a_backtrack(shelf: Retriever) -> None:
    made = await traces_of(shelf, two_hops(), max_steps=20)
    assert unforced(made) == [
        "<search>Lima</search>",
        "<note>Lima is in Peru</note><search>Lima</search>",
        "<note>Lima is in Peru</note><backtrack/>",
        "<search>Lima Duarte</search>",
        f"<note>{NOTHING_FOUND}</note><backtrack/>",
        "<search>Peru money</search>",
        "<note>Peru uses the Sol</note><search>Peru money</search>",
        "<note>Peru uses the Sol</note><backtrack/>",
        "<answer>Sol</answer>",
    ]
    told = {key: made.counts[key] for key in ("searches: redundant", "searches: detours")}
    assert told == {"searches: redundant": 2, "searches: detours": 1}
    assert (made.counts["backtracks"], made.counts["searches"]) == (3, 5)


@pytest.mark.parametrize("max_steps", [3, 4, 5, 6])
async def test_needless_searches_leave_enough_steps_for_the_answer(
    shelf: Retriever, max_steps: int
) -> None:
    made = await traces_of(shelf, two_hops(), max_steps=max_steps)
    assert made.counts["traces"] == 1
    assert made.examples[-1].target.endswith("<answer>Sol</answer>")
    needless = made.counts["searches: redundant"] + made.counts["searches: detours"]
    assert made.counts["backtracks"] == needless, "every needless search is followed by a backtrack"
    assert len({e.messages for e in made.examples}) <= max_steps


async def test_a_missed_search_is_reworded_and_the_question_refused_if_all_miss(
    shelf: Retriever,
) -> None:
    def asked(*queries: str) -> Question:
        hop = {"queries": queries, "passage_id": "peru", "evidence": ["Peru uses the Sol"]}
        return two_hops(extra={"hops": [hop]})

    recovered = [
        await traces_of(shelf, asked("Oslo", "Peru"), max_steps=3, seed=seed) for seed in range(8)
    ]
    assert all(made.counts["traces"] == 1 for made in recovered), "a retry fits into 3 steps"
    assert [
        "<search>Oslo</search>",
        f"<note>{NOTHING_FOUND}</note><search>Peru</search>",
        "<note>Peru uses the Sol</note><answer>Sol</answer>",
    ] in [[e.target for e in made.examples[:3]] for made in recovered]
    lost = await traces_of(shelf, asked("Oslo", "Norway"))
    assert lost.counts["searches: missed"] == 2
    assert (lost.counts["backtracks"], lost.counts["refusals: nothing found"]) == (1, 1)
    assert lost.examples[-1].target == f"<note>{NOTHING_FOUND}</note><refuse/>"


async def test_unanswerable_questions_are_refused_after_one_to_three_searches(
    shelf: Retriever,
) -> None:
    searches = set()
    for seed in range(20):
        made = await traces_of(shelf, unanswerable(), habits=NEVER, seed=seed)
        *tries, end = made.examples
        assert end.target == f"<note>{NOTHING_FOUND}</note><refuse/>"
        queries = re.findall(r"<search>(.*?)</search>", " ".join(e.target for e in tries))
        assert len(set(queries)) == len(tries) == made.counts["searches"]
        assert set(queries) <= {"Lima mayor", "mayor Lima", "Lima"}
        searches.add(len(tries))
    assert searches == {1, 2, 3}


@pytest.mark.parametrize("max_steps", [5, 6])
async def test_needless_searches_leave_enough_steps_for_the_refusal(
    shelf: Retriever, max_steps: int
) -> None:
    for seed in range(10):
        made = await traces_of(shelf, unanswerable(), max_steps=max_steps, seed=seed)
        assert made.counts["traces"] == 1, (
            "the last call may only answer, so a step must be left to refuse"
        )


async def test_give_up_traces_refuse_after_the_first_hop(shelf: Retriever) -> None:
    giving_up = replace(NEVER, give_up=1.0)
    made = await traces_of(shelf, two_hops(), habits=giving_up)
    assert unforced(made) == ["<search>Lima</search>", "<note>Lima is in Peru</note><refuse/>"]
    assert made.counts["refusals: given up"] == 1


async def test_questions_without_a_possible_trace_are_skipped_and_counted(shelf: Retriever) -> None:
    made = await traces_of(
        shelf,
        two_hops(id="a", extra={}, supporting_ids=("gone",)),
        two_hops(id="b", answers=("a\nb",)),
        unanswerable(id="c", question=" "),
    )
    assert made.examples == []
    assert dict(made.skipped) == {
        "supporting passages are not in the corpus": 1,
        "a step does not fit the protocol's form": 1,
        "no query": 1,
    }
    short = await traces_of(shelf, two_hops(), max_steps=2)
    assert short.skipped["longer than max_steps"] == 1


async def test_a_trace_does_not_depend_on_the_other_questions(shelf: Retriever) -> None:
    habits = WASTEFUL
    alone = await traces_of(shelf, two_hops(id="b"), habits=habits)
    beside = await traces_of(shelf, unanswerable(id="a"), two_hops(id="b"), habits=habits)
    assert [e for e in beside.examples if e.question_id == "b"] == alone.examples


def test_queries_about_use_the_longest_title_in_the_question() -> None:
    titles = {"Lima", "Lima Duarte", "Who", "Of", "of"}
    assert queries_about(a_question(question="Who founded Lima Duarte?"), titles) == (
        "Lima Duarte founded",
        "founded Lima Duarte",
        "Lima Duarte",
    )
    nameless = a_question(question="Who was the first of the  kings?")
    assert queries_about(nameless, titles) == ("first kings", nameless.question.replace("  ", " "))


Atlas = tuple[dict[str, Question], dict[str, Passage], Retriever]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    corpus = build_corpus(800)
    index = open_retriever(Bm25Settings(), corpus, tmp_path_factory.mktemp("atlas"))
    questions = {q.id: q for q in build_questions("warm", 80, cities=800)}
    return questions, {p.id: p for p in corpus}, index


async def replayed(
    question: Question, examples: list[StepExample], retriever: Retriever
) -> Trajectory:
    """Replays a trace in the environment and checks that its prompts equal the examples'."""
    targets = iter([example.target for example in examples])
    script = ScriptedEngine(lambda _: next(targets))
    environment = Environment(PROTOCOL, script, retriever, TOP_K)
    state = State(question.question)
    done = await environment.trajectory(state, Sampling(), question_id=question.id, path="")
    assert [request.messages for request in script.asked] == [e.messages for e in examples]
    return done


def by_question(traces: Traces) -> Iterator[tuple[str, list[StepExample]]]:
    """Yields each question's steps, without those that only show the forced-answer prompt."""
    found: dict[str, list[StepExample]] = {}
    for example in traces.examples:
        steps = found.setdefault(example.question_id, [])
        ended = steps and re.search(r"<answer>|<refuse/>", steps[-1].target)
        if not ended:
            steps.append(example)
    yield from found.items()


async def test_replayed_atlas_traces_match_prompts_answers_and_counts(atlas: Atlas) -> None:
    questions, corpus, retriever = atlas
    made = await build_traces(questions.values(), corpus, PROTOCOL, retriever, 0, TOP_K)
    seen: dict[str, int] = {"searches": 0, "backtracks": 0, "refused": 0}
    for question_id, examples in by_question(made):
        question = questions[question_id]
        done = await replayed(question, examples, retriever)
        steps = done.state.steps
        assert done.stop_reason in ("answer", "forced", "refused"), "every target parses"
        if not question.answerable:
            assert done.stop_reason == "refused"
        if done.state.answer is not None:
            assert done.state.answer == question.answers[0]
            shown = {p.id for step in steps for p in step.passages}
            assert set(question.supporting_ids) <= shown, "an answer needs all its passages"
        for before, step in pairwise(steps):
            assert (note_of(step) is not None) == (before.action.kind == "search")
        for note, passages in notes(done.state):
            shown_hops = [h for h in question.extra["hops"] if h["passage_id"] in passages]
            evidence = {evidence for hop in shown_hops for evidence in hop["evidence"]}
            assert note in evidence | {NOTHING_FOUND}, "a note quotes its own search"
        seen["searches"] += sum(step.action.kind == "search" for step in steps)
        seen["backtracks"] += sum(step.action.kind == "backtrack" for step in steps)
        seen["refused"] += done.state.refused
    assert seen["searches"] == made.counts["searches"]
    assert seen["backtracks"] == made.counts["backtracks"]
    refusals = sum(n for name, n in made.counts.items() if name.startswith("refusals"))
    assert seen["refused"] == refusals >= 8, "one question in ten cannot be answered"


async def test_default_traces_contain_needless_searches_and_backtracks(atlas: Atlas) -> None:
    questions, corpus, retriever = atlas
    made = await build_traces(questions.values(), corpus, PROTOCOL, retriever, 0, TOP_K)
    bare = await build_traces(
        questions.values(), corpus, PROTOCOL, retriever, 0, TOP_K, habits=NEVER
    )
    assert made.counts["searches"] > 1.4 * bare.counts["searches"]
    assert made.counts["backtracks"] > 0.5 * made.counts["traces"]
    assert bare.counts["backtracks"] == 0


def notes(state: State) -> Iterator[tuple[str, set[str]]]:
    """Yields every note with the ids of the passages that its search returned."""
    for end, step in enumerate(state.steps):
        if (note := note_of(step)) is not None:
            yield note, {p.id for p in live_searches(state.steps[:end])[-1].passages}
