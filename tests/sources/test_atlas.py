"""Atlas: reproducible per seed, disjoint between splits, and consistent with its passages."""

import re
from collections import Counter

import pytest

from branchwise.sources.atlas import build_corpus, build_questions
from branchwise.sources.atlas.facts import load_facts
from branchwise.sources.settings import Split
from branchwise.sources.splits import split_of
from branchwise.types import Passage, Question

PARTS: tuple[Split, ...] = ("warm", "train", "dev", "test")
SHARED = {"yes", "no"}


@pytest.fixture(scope="module")
def corpus() -> dict[str, Passage]:
    return {passage.id: passage for passage in build_corpus()}


@pytest.fixture(scope="module")
def questions() -> dict[str, list[Question]]:
    return {part: build_questions(part, 400) for part in PARTS}


def test_every_country_and_every_city_has_one_passage(corpus: dict[str, Passage]) -> None:
    kinds = Counter(name.split("-")[1] for name in corpus)
    assert kinds == {"country": 252, "city": 34_006}
    paris = corpus["atlas-city-2988507"]
    assert "France" in paris.text
    assert re.search(r"\bEuro\b", paris.text) is None, "no facts of the country"


def test_questions_depend_on_the_seed_and_a_smaller_count_is_a_prefix(
    questions: dict[str, list[Question]],
) -> None:
    assert build_questions("dev", 400) == questions["dev"]
    assert build_questions("dev", 50) == questions["dev"][:50]
    other = {q.id for q in build_questions("dev", 400, seed=1)}
    assert len(other - {q.id for q in questions["dev"]}) > 300


def test_splits_share_no_question_and_no_cited_place(questions: dict[str, list[Question]]) -> None:
    texts = [q.question.casefold() for part in PARTS for q in questions[part]]
    assert len(texts) == len(set(texts)) == 1600
    cited = {part: {i for q in questions[part] for i in q.supporting_ids} for part in PARTS}
    for one in PARTS:
        for other in PARTS:
            assert one == other or not cited[one] & cited[other]
    countries = load_facts().countries
    for part in PARTS:
        for name in cited[part]:
            if name.startswith("atlas-country-"):
                assert split_of(name.removeprefix("atlas-country-")) == part
                assert name.removeprefix("atlas-country-") in countries


def test_every_question_type_occurs_and_bridges_have_their_shares(
    questions: dict[str, list[Question]],
) -> None:
    kinds = Counter((q.type, q.hops) for q in questions["test"])
    assert set(kinds) == {
        ("single", 1), ("bridge", 2), ("bridge", 3), ("comparison", 2), ("compositional", 2),
        ("unanswerable", None),
    }  # fmt: skip
    assert min(kinds.values()) >= 10
    assert kinds["bridge", 2] == 160
    assert kinds["bridge", 3] == kinds["compositional", 2] == 40, "despite rejected draws"


def test_the_last_passage_has_the_answer_and_each_hop_its_evidence(
    questions: dict[str, list[Question]], corpus: dict[str, Passage]
) -> None:
    for question in (q for part in PARTS for q in questions[part] if q.answerable):
        hops = question.extra["hops"]
        assert tuple(hop["passage_id"] for hop in hops) == question.supporting_ids
        assert all(name in corpus for name in question.supporting_ids)
        if question.type != "comparison":
            last = hops[-1]
            assert question.answers[0] in corpus[last["passage_id"]].text
            assert all(question.answers[0] in text for text in last["evidence"])
            assert question.answers[0].lower() not in question.question.lower()
        for hop in hops:
            assert corpus[hop["passage_id"]].text.find(hop["evidence"][0]) >= 0


def test_no_earlier_passage_gives_the_answer_away(
    questions: dict[str, list[Question]], corpus: dict[str, Passage]
) -> None:
    for question in (q for part in PARTS for q in questions[part]):
        if question.type in ("bridge", "compositional"):
            answer = re.escape(question.answers[0].replace("_", " "))
            for name in question.supporting_ids[:-1]:
                text = corpus[name].text.replace("_", " ")
                assert not re.search(rf"(?<![\w,]){answer}(?!\w)", text), question.question


def test_names_that_differ_only_in_punctuation_are_not_unique() -> None:
    unique = load_facts().unique
    assert not unique & {"Basse-Terre", "Basseterre"}
    assert "Fortaleza" in unique


def test_comparison_questions_are_answered_by_the_larger_city(
    questions: dict[str, list[Question]],
) -> None:
    people = {city.name: city.population for city in load_facts().cities}
    checked = 0
    for question in questions["test"]:
        if question.type == "comparison" and question.answers[0] not in SHARED:
            one, two = question.supporting_titles
            assert question.answers == ((one,) if people[one] > people[two] else (two,))
            checked += 1
    assert checked > 10


def test_only_unanswerable_questions_have_no_answers(
    questions: dict[str, list[Question]],
) -> None:
    for question in questions["dev"]:
        assert question.answerable == (question.type != "unanswerable")
        assert bool(question.answers) == question.answerable


def test_no_passage_is_about_what_unanswerable_questions_ask(
    questions: dict[str, list[Question]], corpus: dict[str, Passage]
) -> None:
    subjects = ("the mayor of", "founded", "football", "flows", "above the sea")
    unanswerable = [question for question in questions["dev"] if not question.answerable]
    assert unanswerable
    assert all(any(word in one.question for word in subjects) for one in unanswerable)
    texts = [passage.text.lower() for passage in corpus.values()]
    assert not [text for text in texts if any(word in text for word in subjects)]


def test_references_are_the_supporting_passages_among_neighbours(
    questions: dict[str, list[Question]], corpus: dict[str, Passage]
) -> None:
    asked = build_questions("test", 60, references=6)
    assert asked == build_questions("test", 60, references=6)
    bare = [question.model_copy(update={"paragraphs": ()}) for question in asked]
    assert bare == questions["test"][:60], "references leave the questions unchanged"
    places = Counter[int]()
    for question in asked:
        shown = {paragraph.id: paragraph for paragraph in question.paragraphs}
        assert len(question.paragraphs) == len(shown) == 6
        supporting = {name for name, paragraph in shown.items() if paragraph.is_supporting}
        assert supporting == set(question.supporting_ids)
        assert all(corpus[str(name)].text == shown[name].text for name in shown)
        places.update(n for n, one in enumerate(question.paragraphs) if one.is_supporting)
    assert min(places[n] for n in range(6)) > 8, "every place holds supporting passages"
    few = build_questions("test", 60, references=1)
    assert {len(question.paragraphs) for question in few} == {1, 2, 3}, "no gold is left out"
