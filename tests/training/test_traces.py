"""Traces from gold facts, over a corpus of three passages."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from agent_protocols import agent_settings
from sample_records import a_question

from branchwise.agent.protocols import protocol_of
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.training.warm_start.hops import best_sentence, hops_of
from branchwise.training.warm_start.traces import Traces, build_traces
from branchwise.training.warm_start.walks import NOT_FOUND, NOTHING_FOUND
from branchwise.types import Passage, Question, QuestionKey, RetrievedPassage

LIMA = Passage(id="lima", title="Lima", text="Lima is a city in Peru. It has a port.")
PERU = Passage(id="peru", title="Peru", text="Peru lies in America. It pays with the Sol.")
NOISE = Passage(id="noise", title="Noise", text="Nothing of <answer>use</answer> is here.")
PASSAGES = {p.id: p for p in (LIMA, PERU, NOISE)}


class Titles:
    """Retriever that returns the passage whose title is the query, otherwise noise."""

    digest = "titles"

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        found = next((p for p in PASSAGES.values() if p.title == query), NOISE)
        return [RetrievedPassage(**found.model_dump(), score=1.0)]


def two_hops(**changes: object) -> Question:
    hops = [
        {"queries": ["Lima", "a"], "passage_id": "lima", "evidence": ["Lima is in Peru"]},
        {"queries": ["Peru"], "passage_id": "peru", "evidence": ["Peru uses the Sol"]},
    ]
    fields = {"question": "Money of Lima?", "answers": ("Sol",), "extra": {"hops": hops}}
    return a_question(**{**fields, **changes})


async def traces_of(
    *questions: Question,
    seed: int = 0,
    max_steps: int = 10,
    incomplete: Collection[QuestionKey] = (),
) -> Traces:
    protocol = ReasonRAG().with_budget(max_steps)
    return await build_traces(
        questions, PASSAGES, protocol, Titles(), seed, 3, incomplete=incomplete
    )


async def test_evidence_needs_its_passage_and_a_missed_query_is_retried() -> None:
    made = [await traces_of(two_hops(), seed=seed) for seed in range(12)]
    missed = [t for t in made if t.counts["query missed"]]
    assert missed, "no seed drew the query that misses"
    assert len(missed) < len(made), "every seed drew the query that misses"
    for example in (e for t in made for e in t.examples if e.stage == "grounding"):
        shown = "Lima is a city" in example.messages[1].content
        if example.target == "<evidence>Lima is in Peru</evidence>":
            assert shown
        if example.target == f"<evidence>{NOTHING_FOUND}</evidence>":
            assert not shown
    recovery = [e.target for e in missed[0].examples[:4]]
    assert recovery == [
        "<query>a</query>",
        "<evidence>None</evidence>",
        "<query>Lima</query>",
        "<evidence>Lima is in Peru</evidence>",
    ]


async def test_targets_fit_their_stage_and_forced_prompts_get_the_answer() -> None:
    protocol = ReasonRAG()
    made = [await traces_of(two_hops(id=f"q{i}")) for i in range(30)]
    forced_text = protocol.prompts["forced"]
    forced = [e for t in made for e in t.examples if e.messages[0].content == forced_text]
    assert 0 < len(forced) < 15
    for example in (e for t in made for e in t.examples):
        kind = example.target[1 : example.target.index(">")]
        assert (kind == "evidence") == (example.stage == "grounding")
    assert {e.target for e in forced} == {"<answer>Sol</answer>"}


async def test_questions_without_a_possible_trace_are_skipped_and_counted() -> None:
    nowhere = [{"queries": ["x", "y"], "passage_id": "lima", "evidence": ["z"]}]
    made = await traces_of(
        two_hops(id="a", extra={"hops": nowhere}),
        two_hops(id="b", extra={}, supporting_ids=("gone",)),
        two_hops(id="c", answers=("a\nb",)),
    )
    assert made.examples == []
    assert made.skipped == Counter(
        {
            "no query wording finds the passage": 1,
            "supporting passages are not in the corpus": 1,
            "a step does not fit the protocol's form": 1,
        }
    )
    short = await traces_of(two_hops(), max_steps=4)
    assert short.skipped["longer than max_steps"] == 1


async def test_a_trace_does_not_depend_on_the_other_questions() -> None:
    alone = await traces_of(two_hops(id="b"))
    beside = await traces_of(two_hops(id="a"), two_hops(id="b"))
    assert [e for e in beside.examples if e.question_id == "b"] == alone.examples


def test_a_cut_document_is_one_hop_unless_the_question_says_otherwise() -> None:
    cut = {
        f"peru#{n}": Passage(id=f"peru#{n}", title="Peru", text=text)
        for n, text in enumerate(("Peru has mountains.", "Its money is the Sol.", "Peru is big."))
    }
    question = a_question(
        question="What money is used where Lima is?",
        answers=("yes",),
        supporting_ids=("lima", *cut),
        supporting_titles=("Lima", "Peru"),
        hops=2,
    )
    passages = {"lima": LIMA, **cut}
    assert [hop.passage_id for hop in hops_of(question, passages)] == ["lima", "peru#1"]
    all_needed = question.model_copy(update={"hops": 4})
    assert len(hops_of(all_needed, passages)) == 4


def test_passages_without_titles_are_asked_for_by_the_question() -> None:
    passages = {
        name: Passage(id=name, title="", text=text)
        for name, text in (("ann", "Ann was born in Lima."), ("lima", "Lima lies in Peru."))
    }
    question = a_question(
        question="In which country was Ann born?",
        answers=("Peru",),
        supporting_ids=tuple(passages),
        supporting_titles=("",),
        hops=None,
    )
    hops = hops_of(question, passages)
    assert [hop.passage_id for hop in hops] == ["ann", "lima"], "they are not of one title"
    assert hops[0].queries[0] == question.question
    assert all(query for hop in hops for query in hop.queries)


@pytest.mark.parametrize(
    "extra",
    [{"hops": 2}, {"decomposition": ["Who?", "Where?"]}, {"decomposition": [{"sub": "Who?"}]}],
)
def test_fields_of_other_sources_are_not_read_as_hops(extra: dict[str, Any]) -> None:
    question = a_question(source="jsonl", supporting_ids=("lima",), extra=extra)
    assert [hop.passage_id for hop in hops_of(question, PASSAGES)] == ["lima"]


async def test_questions_that_cite_missing_passages_are_skipped() -> None:
    made = await traces_of(two_hops(id="a"), two_hops(id="b"), incomplete={("atlas", "a")})
    assert {example.question_id for example in made.examples} == {"b"}
    assert made.skipped["supporting passages are not in the corpus"] == 1


def test_hops_run_from_the_passage_named_in_the_question_to_the_answer() -> None:
    question = a_question(
        question="What money is used where Lima is?",
        answers=("Sol",),
        supporting_ids=("peru", "lima"),
        supporting_titles=("Peru", "Lima"),
        hops=2,
    )
    hops = hops_of(question, PASSAGES)
    assert [hop.passage_id for hop in hops] == ["lima", "peru"]
    assert [hop.evidence[0] for hop in hops] == [
        "Lima is a city in Peru.",
        "It pays with the Sol.",
    ]
    assert hops_of(question, {"lima": LIMA}) == []


def test_evidence_of_an_earlier_hop_names_the_next_passage_not_the_answer() -> None:
    text = "Lima pays with the Sol. Lima is a city in Peru."
    passages = {"lima": LIMA.model_copy(update={"text": text}), "peru": PERU}
    question = a_question(
        question="What money is used where Lima is?",
        answers=("Sol",),
        supporting_ids=("lima", "peru"),
        hops=2,
        extra={"decomposition": STEPS},
    )
    first, last = hops_of(question, passages)
    assert first.evidence == ("Lima is a city in Peru.",)
    assert last.evidence == ("It pays with the Sol.",)


STEPS = [
    {"question": "Where is Lima?", "answer": "Peru", "support_title": "Lima"},
    {"question": "Money of #1?", "answer": "Sol", "support_title": "Peru"},
]


@pytest.mark.parametrize("listed", [("lima", "peru"), ("peru", "lima")])
def test_a_decomposition_sets_the_hop_order_and_fills_in_earlier_answers(
    listed: tuple[str, ...],
) -> None:
    # The question names the passage of the second step only.
    question = a_question(
        question="Peru?",
        answers=("Sol",),
        supporting_ids=listed,
        hops=2,
        extra={"decomposition": STEPS},
    )
    first, last = hops_of(question, PASSAGES)
    assert (first.passage_id, first.queries[0]) == ("lima", "Where is Lima?")
    assert (last.passage_id, last.queries[0]) == ("peru", "Money of Peru?")


@pytest.mark.parametrize("listed", [("where", "money"), ("money", "where")])
def test_passages_of_one_title_belong_to_the_step_whose_answer_they_state(
    listed: tuple[str, ...],
) -> None:
    passages = {
        "where": Passage(id="where", title="Lima", text="Lima is a city in Peru."),
        "money": Passage(id="money", title="Lima", text="Lima pays with the Sol."),
    }
    steps = [{**STEPS[0]}, {**STEPS[1], "support_title": "Lima"}]
    question = a_question(
        answers=("Sol",), supporting_ids=listed, hops=2, extra={"decomposition": steps}
    )
    assert [hop.passage_id for hop in hops_of(question, passages)] == ["where", "money"]


def test_a_later_hop_is_queried_by_the_title_found_in_the_previous_hop() -> None:
    question = a_question(
        question="What money is used where Lima is?",
        answers=("Sol",),
        supporting_ids=("lima", "peru"),
        hops=2,
    )
    assert hops_of(question, PASSAGES)[1].queries[0] == "Peru"


def test_a_single_hop_uses_the_named_passage_that_contains_the_answer() -> None:
    """PopQA also marks the answer's own passage and passages that only share the name."""
    passages = {
        "lima": Passage(id="lima", title="Lima", text="Lima pays with the Sol."),
        "named": Passage(id="named", title="Lima (film)", text="A film."),
        "sol": Passage(id="sol", title="Sol", text="The Sol is money."),
    }
    question = a_question(
        question="Money of Lima?",
        answers=("Sol",),
        supporting_ids=("sol", "named", "lima"),
        hops=1,
    )
    assert [hop.passage_id for hop in hops_of(question, passages)] == ["lima"]


async def test_a_search_loop_writes_not_found_after_a_missed_search() -> None:
    protocol = protocol_of(agent_settings("search-r1"))
    said = []
    for seed in range(12):
        made = await build_traces([two_hops()], PASSAGES, protocol, Titles(), seed, 3)
        if made.counts["searches: missed"]:
            said.append(str(made.examples[1].target))
    assert said
    assert all(NOT_FOUND in one for one in said)


async def test_useless_searches_are_added_only_if_steps_are_left() -> None:
    protocol = protocol_of(agent_settings("r1-searcher"))
    hops = [{**hop, "queries": [hop["queries"][0]]} for hop in two_hops().extra["hops"]]
    asked = [two_hops(id=f"q{n}", extra={"hops": hops}) for n in range(40)]
    for max_steps, wasteful in ((3, False), (10, True)):
        by = protocol.with_budget(max_steps)
        made = await build_traces(asked, PASSAGES, by, Titles(), 0, 3)
        assert made.counts["traces"] == 40
        assert bool(made.counts["searches: useless"]) == wasteful


def test_the_word_no_is_not_evidence_for_the_answer_no() -> None:
    passage = Passage(id="p", title="P", text="It has no port. Lima lies inland on a river.")
    asked = a_question(question="Does Lima lie on a river?", answers=("no",))
    assert best_sentence(asked, passage, []) == "Lima lies inland on a river."


def test_long_evidence_is_cut_around_the_answer_and_stays_verbatim() -> None:
    text = "word " * 100 + "The answer is Sol in truth " + "more " * 100
    passage = Passage(id="p", title="P", text=text)
    piece = best_sentence(a_question(answers=("Sol",)), passage, [])
    assert "Sol" in piece
    assert len(piece) <= 280
    assert piece in text
