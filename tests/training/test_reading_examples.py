"""Reading examples: one passage with the answer among others without it."""

import random
from collections.abc import Sequence

import pytest
from agent_protocols import agent_settings
from sample_records import a_question

from branchwise.agent.protocol import AgentProtocol
from branchwise.agent.protocols import protocol_of
from branchwise.training.settings import ReadingSettings
from branchwise.training.warm_start.reading_examples import StagedSearch, build_reading
from branchwise.training.warm_start.traces import Traces
from branchwise.types import Passage, Question, RetrievedPassage

LIMA = Passage(id="lima", title="Lima", text="Lima is a city. Its harbour is Callao.")
ALSO = Passage(id="also", title="Harbours", text="Callao is a harbour.")
OTHERS = [Passage(id=f"o{n}", title=f"Other {n}", text=f"Nothing of use {n}.") for n in range(4)]
DENIAL = Passage(id="o4", title="Denial", text="There is no port.")
PASSAGES = {p.id: p for p in (LIMA, ALSO, *OTHERS, DENIAL)}


class Ranked:
    """Returns the passages in a fixed order."""

    digest = "ranked"

    def __init__(self, *order: str) -> None:
        self.order = order

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        found = (PASSAGES[name] for name in self.order[:top_k])
        return [RetrievedPassage(**p.model_dump(), score=1.0) for p in found]


def harbour(name: str = "q") -> Question:
    return a_question(
        id=name,
        question="Which harbour serves Lima?",
        answers=("Callao",),
        supporting_ids=("lima",),
        supporting_titles=("Lima",),
        hops=1,
    )


def staged(*order: str, absent: bool = False, seed: int = 0) -> StagedSearch:
    return StagedSearch(Ranked(*order), harbour(), LIMA, random.Random(seed), absent)


async def shown(*order: str, seeds: int = 40) -> set[tuple[str, ...]]:
    """Returns the distinct results of a staged search over `seeds` seeds, as passage ids."""
    return {
        tuple(p.id for p in await staged(*order, seed=seed).search("x", 3)) for seed in range(seeds)
    }


async def read(
    protocol: AgentProtocol | None = None,
    questions: int = 1,
    order: Sequence[str] = ("o0", "also", "o1", "o2", "o3"),
    asked: Question | None = None,
    **shares: float,
) -> Traces:
    settings = ReadingSettings.model_validate(
        {"sets": [{"source": "reading"}], "absent": 0, **shares}
    )
    return await build_reading(
        [asked or harbour(f"q{n}") for n in range(questions)],
        PASSAGES,
        protocol or protocol_of(agent_settings("reasonrag")),
        Ranked(*order),
        seed=0,
        top_k=3,
        reading=settings,
    )


async def test_the_gold_passage_keeps_its_rank_and_other_answer_passages_are_dropped() -> None:
    assert await shown("o0", "lima", "also", "o1") == {
        ("lima",),
        ("o0", "lima"),
        ("o0", "lima", "o1"),
    }


async def test_the_word_no_in_a_passage_does_not_count_as_the_answer_no() -> None:
    question = harbour().model_copy(update={"answers": ("no",)})
    search = StagedSearch(Ranked("o4", "lima"), question, LIMA, random.Random(0), absent=True)
    assert [p.id for p in await search.search("x", 3)] == ["o4"]


async def test_a_missed_gold_passage_is_inserted_at_every_rank() -> None:
    assert {ids for ids in await shown("o0", "o1", "o2", seeds=80) if len(ids) == 3} == {
        ("lima", "o0", "o1"),
        ("o0", "lima", "o1"),
        ("o0", "o1", "lima"),
    }


async def test_one_to_top_k_passages_are_shown() -> None:
    assert {len(ids) for ids in await shown("o0", "o1", "o2", "o3", "lima")} == {1, 2, 3}


async def test_a_hit_means_that_the_first_search_returned_the_gold_passage() -> None:
    search = staged("o0", "o1", "o2", "lima")
    await search.search("x", 3)
    assert search.hit is False, "ranked fourth, but only three are returned"
    search.retriever = Ranked("lima")
    await search.search("y", 3)
    assert search.hit is False, "a later query does not change the hit"


async def test_an_absent_gold_passage_is_shown_by_the_second_search() -> None:
    search = staged("lima", "o0", "also", "o1", "o2", absent=True)
    assert [p.id for p in await search.search("x", 3)] == ["o0", "o1", "o2"]
    assert "lima" in [p.id for p in await search.search("y", 3)]


async def test_a_first_query_is_learned_if_it_finds_the_passage() -> None:
    found = await read(questions=40, order=("o0", "lima", "o1"), queries=1)
    queries = [e.target for e in found.examples if e.target.startswith("<query>")]
    assert len(queries) == 40
    assert f"<query>{harbour().question}</query>" in queries
    assert len(set(queries)) > 1
    some = await read(questions=40, order=("o0", "lima", "o1"), queries=0.5)
    assert 10 < sum(e.target.startswith("<query>") for e in some.examples) < 30


async def test_evidence_and_answer_are_learned_but_not_a_query_that_misses() -> None:
    made = await read(queries=1)
    grounding, answer = made.examples
    assert grounding.target == "<evidence>Its harbour is Callao.</evidence>"
    assert "Lima is a city" in grounding.messages[1].content
    assert "Callao is a harbour" not in grounding.messages[1].content
    assert answer.target == "<answer>Callao</answer>"


async def test_a_share_of_the_answers_follows_the_forced_prompt() -> None:
    protocol = protocol_of(agent_settings("reasonrag"))
    made = await read(protocol, questions=60, grounding=0, forced=0.5)
    assert len(made.examples) == 60
    assert {e.target for e in made.examples} == {"<answer>Callao</answer>"}
    demanded = [protocol.prompts["forced"] in e.messages[0].content for e in made.examples]
    assert 15 < sum(demanded) < 45


@pytest.mark.parametrize("forced", [0, 1])
async def test_none_or_all_of_the_answers_follow_the_forced_prompt(forced: int) -> None:
    protocol = protocol_of(agent_settings("reasonrag"))
    made = await read(protocol, questions=5, grounding=0, forced=forced)
    demanded = [protocol.prompts["forced"] in e.messages[0].content for e in made.examples]
    assert demanded == [bool(forced)] * 5


async def test_a_two_hop_question_is_read_with_the_passage_of_its_answer() -> None:
    hops = [
        {"queries": ["a"], "passage_id": "o0", "evidence": ["Nothing of use 0."]},
        {"queries": ["b"], "passage_id": "lima", "evidence": ["Its harbour is Callao."]},
    ]
    made = await read(asked=harbour().model_copy(update={"extra": {"hops": hops}}))
    assert [e.target for e in made.examples] == [
        "<evidence>Its harbour is Callao.</evidence>",
        "<answer>Callao</answer>",
    ]


async def test_an_absent_gold_passage_gives_no_evidence_and_a_second_query() -> None:
    made = await read(absent=1)
    nothing, query, evidence, answer = made.examples[:4]
    assert nothing.target == "<evidence>None</evidence>"
    assert "Lima is a city" not in nothing.messages[1].content
    assert query.target.startswith("<query>")
    assert evidence.target == "<evidence>Its harbour is Callao.</evidence>"
    assert answer.target == "<answer>Callao</answer>"


@pytest.mark.parametrize(
    ("grounding", "answers", "kinds"),
    [(0, 1, {"answer"}), (1, 0, {"evidence"}), (0.5, 0.5, {"answer", "evidence"})],
)
async def test_shares_select_the_kinds_of_learned_targets(
    grounding: float, answers: float, kinds: set[str]
) -> None:
    made = await read(questions=60, grounding=grounding, answers=answers)
    assert {e.target[1 : e.target.index(">")] for e in made.examples} == kinds
    read_by = {e.question_id for e in made.examples if e.target.startswith("<evidence>")}
    assert len(read_by) in ({0: range(1), 0.5: range(15, 46), 1: range(60, 61)}[grounding])


@pytest.mark.parametrize("name", ["evo-rag", "r1-searcher", "search-r1", "eval-rar", "autorefine"])
async def test_other_protocols_learn_the_answer_with_the_gold_passage(name: str) -> None:
    made = await read(protocol_of(agent_settings(name)))
    assert made.counts["reading questions"] == 1
    (answer,) = {e.target for e in made.examples}
    assert "Its harbour is Callao." in answer
    shown = str([*made.examples[0].messages, made.examples[0]])
    assert "Lima is a city" in shown
    assert "Callao is a harbour" not in shown


async def test_arena_gets_the_gold_passage_among_its_references() -> None:
    made = await read(protocol_of(agent_settings("arena")), absent=1)
    (example,) = made.examples
    assert 1 <= example.messages[1].content.count("[") <= 3
    assert "Its harbour is Callao." in example.target
    assert example.target.endswith("<answer>Callao</answer>")


async def test_no_query_is_learned_if_the_protocol_gives_the_passages() -> None:
    protocol = protocol_of(agent_settings("arena"))
    made = await read(protocol, order=("lima", "o0", "o1"), queries=1)
    assert len(made.examples) == 1, "the answer, once"


async def test_examples_do_not_depend_on_the_other_questions() -> None:
    alone = (await read(questions=1, absent=0.5, grounding=0.5)).examples
    beside = (await read(questions=9, absent=0.5, grounding=0.5)).examples
    assert [e for e in beside if e.question_id == "q0"] == alone
