"""Questions about a given passage, and sets with tables or facts instead of passages."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_dataset import write_rows

from branchwise.base.errors import ConfigError
from branchwise.rewards.answers import guessable
from branchwise.sources.load import Data, load_data
from branchwise.sources.passage_questions import ReadingRow
from branchwise.sources.readers import read_set
from branchwise.sources.settings import DataSettings, SetSettings
from branchwise.sources.splits import repeated_questions
from branchwise.types import Question

ALDER = "The Alder rises on the moor. It meets the Tamar at Gunnislake."
BIRCH = "The Birch is a stream that a mill was built on in the year 1802."
SHARED = Path(__file__).parents[2].parent / "shared" / "data"
LINE = {"id": "r1", "question": "Where does it rise?", "answers": ["the moor"], "passage": ALDER}
SQUAD = {
    "title": "Alder_%28river%29",
    "paragraphs": [
        {
            "context": ALDER,
            "qas": [
                {
                    "id": "s1",
                    "question": "Where does it rise?",
                    "answers": [
                        {"text": "the moor", "answer_start": 19},
                        {"text": "the moor", "answer_start": 19},
                        {"text": "moor", "answer_start": 23},
                    ],
                    "is_impossible": False,
                },
                {
                    "id": "s2",
                    "question": "Where does it freeze?",
                    "answers": [],
                    "plausible_answers": [{"text": "the moor", "answer_start": 19}],
                    "is_impossible": True,
                },
            ],
        },
        {
            "context": BIRCH,
            "qas": [{"id": "s3", "question": "?", "answers": [{"text": "1802"}]}],
        },
    ],
}
MRQA = {
    "context": f"[PAR] [TLE] Alder [SEP] {ALDER} [PAR] [TLE] Birch [SEP] <P> {BIRCH} </P>",
    "context_tokens": [["The", 0]],
    "qas": [
        {
            "qid": "m1",
            "question": "When was the mill built?",
            "question_tokens": [["When", 0]],
            "answers": ["1802"],
            "detected_answers": [{"text": "1802", "char_spans": [[9, 12]]}],
        },
        {"qid": "m2", "question": "Where does the Alder rise?", "answers": ["the moor"]},
    ],
}


def read(path: str, source: str = "reading") -> list[Question]:
    return [placed.question for placed in read_set(source, path)[0]]


def load(path: str, **settings: Any) -> Data:
    return load_data(
        DataSettings(
            **{"source": "reading", "questions": path, "split": None, "limit": None, **settings}
        ),
        0,
    )


def gold_texts(data: Data) -> dict[str, list[str]]:
    texts = {passage.id: passage.text for passage in data.passages}
    return {one.id: [texts[name] for name in one.supporting_ids] for one in data.questions}


def test_our_own_reading_format(tmp_path: Path) -> None:
    titled = {**LINE, "title": "Alder", "kind": "span", "relation": "P1", "licence": "MIT"}
    closed = {**LINE, "id": "r2", "answers": ["no"], "title": ""}
    first, second = read(write_rows(tmp_path / "r.jsonl", titled, closed))
    assert (first.type, first.hops, first.licence) == ("span", 1, "MIT")
    assert first.extra == {"relation": "P1"}
    assert [(p.title, p.text, p.is_supporting) for p in first.paragraphs] == [
        ("Alder", ALDER, True)
    ]
    assert second.type == "yesno" and guessable(second.question, second.answers)
    assert second.supporting_titles == ("The Alder rises on the moor. It meets",)


def test_boolq_as_released(tmp_path: Path) -> None:
    row = {"question": "is it a river", "title": "Alder", "answer": True, "passage": ALDER}
    first, second = read(write_rows(tmp_path / "b.jsonl", row, {**row, "passage": BIRCH}))
    assert (first.answers, first.type) == (("yes",), "yesno")
    assert first.id != second.id


def test_squad_as_released(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [SQUAD]}))
    first, impossible, third = read(str(path))
    assert (first.id, first.answers, first.type) == ("s1", ("the moor", "moor"), "span")
    assert first.supporting_titles == ("Alder (river)",)
    assert (impossible.answerable, impossible.answers) == (False, ())
    assert impossible.type == "unanswerable" and "plausible_answers" in impossible.extra
    assert not impossible.paragraphs[0].is_supporting
    data = load(str(path))
    assert gold_texts(data) == {"s1": [ALDER], "s2": [], "s3": [BIRCH]}
    assert first.split == impossible.split == third.split


def test_mrqa_as_released(tmp_path: Path) -> None:
    header = {"header": {"dataset": "HotpotQA", "split": "dev"}}
    untitled = {"context": ALDER, "qas": [{"qid": "m3", "question": "Q?", "answers": ["moor"]}]}
    first, second, third = read(write_rows(tmp_path / "m.jsonl", header, MRQA, untitled))
    assert first.paragraphs == second.paragraphs
    assert first.supporting_titles == ("Alder",)
    assert first.paragraphs[0].text == f"{ALDER} Birch {BIRCH}"
    assert first.extra == {}
    assert third.paragraphs[0].text == ALDER


def test_a_later_mrqa_passage_keeps_a_title_equal_to_the_first(
    tmp_path: Path,
) -> None:
    context = "[PAR] [TLE] Alder [SEP] It rises. [PAR] [TLE] Alder [SEP] It falls."
    first, _ = read(write_rows(tmp_path / "m.jsonl", {**MRQA, "context": context}))
    assert first.paragraphs[0].text == "It rises. Alder It falls."


@pytest.mark.parametrize(
    ("answers", "kind"), [(["No"], "yesno"), (["yes", "no"], "yesno"), (["no", "none"], "span")]
)
def test_a_question_is_closed_if_all_its_answers_are_yes_or_no(
    answers: list[str], kind: str
) -> None:
    assert ReadingRow.parse({**LINE, "answers": answers}).to_question("reading").type == kind


def test_an_impossible_question_ignores_the_answers_of_its_line() -> None:
    impossible = ReadingRow.parse({**LINE, "is_impossible": True}).to_question("reading")
    assert (impossible.answerable, impossible.answers) == (False, ())


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("q.jsonl", {**LINE, "passage": " "}, "q.jsonl:2: `passage`: is empty"),
        ("q.jsonl", {**LINE, "answers": [""]}, "q.jsonl:2: lacks answers"),
        ("q.jsonl", {**LINE, "answers": [{"span": 3}]}, r"q.jsonl:2: `answers\[0\]`: Input"),
        ("q.jsonl", {**MRQA, "context": None}, r"q.jsonl:2: `context`: .* \(read as MRQA's line"),
        ("q.jsonl", {**MRQA, "qas": [3]}, r"q.jsonl:2: `qas\[0\]`: "),
        (
            "q.jsonl",
            {**MRQA, "qas": [*MRQA["qas"], {"qid": "m3", "answers": ["a"]}]},
            "q.jsonl:2, question 3: `question`: Field required",
        ),
        (
            "q.json",
            {**SQUAD, "paragraphs": [{"context": ALDER}]},
            r"q.json: item 2: `paragraphs\[0\].qas`: Field required \(read as SQuAD's article",
        ),
        (
            "q.json",
            {**SQUAD, "paragraphs": [{"context": ALDER, "qas": [{"id": "x", "question": "Q?"}]}]},
            "q.json: item 2, question 1: lacks answers",
        ),
    ],
)
def test_a_fault_is_reported_with_its_line_or_item(
    tmp_path: Path, name: str, row: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    sound = {**LINE, "id": "sound"}
    lines = [json.dumps(one) for one in (sound, row)]
    path.write_text(f"[{','.join(lines)}]" if name == "q.json" else "\n".join(lines))
    with pytest.raises(ConfigError, match=message):
        read_set("reading", str(path))


def test_gold_is_the_questions_own_passage_even_if_titles_repeat(tmp_path: Path) -> None:
    # Two passages share a title and an answer, one is asked about twice, and one has no title.
    start = "The moor is wide and open to all, "
    rows = [
        {**LINE, "id": "a", "title": "T", "passage": "the moor, one"},
        {**LINE, "id": "b", "title": "T", "passage": "the moor, two"},
        {**LINE, "id": "c", "title": "T", "passage": "the moor, two", "question": "Which?"},
        {**LINE, "id": "d", "title": "", "passage": f"{start}says the moor's owner."},
        {**LINE, "id": "e", "title": "", "passage": f"{start}says the moor's guest."},
    ]
    path = write_rows(tmp_path / "r.jsonl", *rows)
    assert gold_texts(load(path)) == {row["id"]: [row["passage"]] for row in rows}
    # The same passages in a corpus with other ids, one of them twice.
    corpus = [
        {"id": f"{n}", "title": p.title, "text": p.text}
        for n, p in enumerate([*load(path).passages, load(path).passages[0]])
    ]
    named = load(path, corpus=write_rows(tmp_path / "c.jsonl", *corpus))
    assert gold_texts(named) == {row["id"]: [row["passage"]] for row in rows}


texts = st.text(min_size=1).filter(str.strip)


@given(
    passage=texts, title=st.none() | st.text(), questions=st.lists(texts, min_size=2, max_size=4)
)
def test_questions_about_one_passage_are_in_one_split(
    passage: str, title: str | None, questions: list[str]
) -> None:
    found = [
        ReadingRow.parse(
            {"question": q, "answers": ["x"], "passage": passage, "title": title}
        ).to_question("reading")
        for q in questions
    ]
    assert len({question.split for question in found}) == 1
    assert {question.paragraphs for question in found} == {found[0].paragraphs}
    assert found[0].paragraphs[0].title.strip()


def test_the_split_of_a_passage_ignores_case_spaces_and_underscores() -> None:
    def split_with(**changes: str) -> str | None:
        return ReadingRow.parse({**LINE, **changes}).to_question("reading").split

    for n in range(12):
        assert split_with(title=f"Alder_River {n}") == split_with(title=f"alder river  {n}")
        assert split_with(passage=f"It Rises {n}.") == split_with(passage=f"it  rises {n}.")


@pytest.mark.parametrize(
    ("source", "passage", "is_repeated"),
    [("reading", BIRCH, False), ("reading", ALDER, True), ("nq", BIRCH, True)],
)
def test_the_same_words_about_another_passage_are_another_question(
    source: str, passage: str, is_repeated: bool
) -> None:
    known = ReadingRow.parse(LINE).to_question("reading")
    row = {**LINE, "id": "r2", "question": "where does  it rise?", "passage": passage}
    asked = ReadingRow.parse(row).to_question(source)
    assert bool(repeated_questions([asked], [known])) == is_repeated
    assert bool(repeated_questions([known], [asked])) == is_repeated


def test_an_id_of_a_numbered_file_does_not_make_a_question_repeated() -> None:
    for source, is_repeated in (("jsonl", False), ("musique", True)):
        fields = {"id": "1", "source": source, "answers": ("a",)}
        asked, known = (Question.model_validate({**fields, "question": q}) for q in ("A?", "B?"))
        assert bool(repeated_questions([asked], [known])) == is_repeated


RIVERS = [
    {"pid": "p1", "title": "Rivers", "text": "A list of rivers.", "is_supporting": False},
    {"pid": "p2", "title": "Tamar", "text": "A river.", "is_supporting": True},
]
FACTS = ["Dogs have good ears.", "Grey seals hear well under the cold water of lakes."]
STRATEGY = {
    "qid": "y1",
    "question": "Would a dog hear it first?",
    "answer": True,
    "facts": FACTS,
    "decomposition": ["How well does a dog hear?", "Is #1 better?"],
}


def test_strategyqa_counts_steps_as_hops_and_drops_blank_facts(tmp_path: Path) -> None:
    steps = ["How well does a dog hear?", "How well does a seal?", "Is #1 better than #2?"]
    row = {**STRATEGY, "facts": [*FACTS, " ", ""], "decomposition": steps}
    (question,) = read(write_rows(tmp_path / "s.jsonl", row), "strategyqa")
    assert question.hops == 3
    assert [p.text for p in question.paragraphs] == FACTS
    # `decomposition` would be taken for MuSiQue's, whose steps have answers.
    assert question.extra == {"sub_questions": steps}


def test_facts_are_the_passages_of_strategyqa(tmp_path: Path) -> None:
    ours = {**STRATEGY, "answers": ["yes"], "id": "y1", "hops": 2}
    ours = {key: value for key, value in ours.items() if key not in ("qid", "answer")}
    path = write_rows(tmp_path / "released.jsonl", STRATEGY)
    assert read(path, "strategyqa") == read(write_rows(tmp_path / "ours.jsonl", ours), "strategyqa")
    data = load(path, source="strategyqa")
    (question,) = data.questions
    assert (question.type, question.hops, question.answers) == ("yesno", 2, ("yes",))
    assert gold_texts(data) == {"y1": FACTS}
    assert question.supporting_titles == (
        "Dogs",
        "Grey seals hear well under the cold water",
    )
    assert guessable(question.question, question.answers)


def test_reading_and_multihop_sets_mix(tmp_path: Path) -> None:
    line = {"id": "h1", "question": "Which river?", "answers": ["Tamar"], "paragraphs": RIVERS}
    files = {"reading": LINE, "jsonl": line, "strategyqa": STRATEGY}
    mix = tuple(
        SetSettings.model_validate(
            {"source": source, "questions": write_rows(tmp_path / source, row), "split": None}
        )
        for source, row in files.items()
    )
    data = load_data(DataSettings(mix=mix, limit=None), 0)
    assert gold_texts(data) == {"r1": [ALDER], "h1": ["A river."], "y1": FACTS}
    assert len(data.passages) == 5


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real sets are not beside the checkout")
@pytest.mark.parametrize(
    ("source", "name", "count"),
    [
        ("reading", "reading/squad11_dev", 10_520),
        ("reading", "reading/fewrel_template", 10_490),
        ("strategyqa", "multihop/mh_strategyqa_train", 2_060),
        ("2wiki", "multihop/mh_2wiki_dev_derived", 1_159),
    ],
)
def test_gold_of_the_real_sets(source: str, name: str, count: int) -> None:
    data = load(str(SHARED / f"{name}.jsonl.gz"), source=source)
    found = gold_texts(data)
    assert (len(found), sum(map(bool, found.values()))) == (count, count)
    for question in data.questions:
        marked = [p.text for p in question.paragraphs if p.is_supporting]
        assert found[question.id] == marked
