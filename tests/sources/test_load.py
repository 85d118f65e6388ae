"""Loading a recipe's data: drawing, mixing, gold passages, and counts."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tiny_dataset import write_rows

from branchwise.base.errors import ConfigError
from branchwise.sources.load import Data, load_data, load_split, unanswerable
from branchwise.sources.settings import AtlasSettings, DataSettings, SetSettings
from branchwise.sources.splits import split_of
from branchwise.types import Event, EventKind

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def rows(prefix: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{prefix}{n}",
            "question": f"Who made {prefix}{n}?",
            "answers": ["Ada"],
            "type": "odd" if n % 2 else "even",
            "paragraphs": [
                {"title": f"{prefix}{n}", "text": "It was made by Ada.", "is_supporting": True},
                {"title": "Noise", "text": "Nothing was made."},
            ],
        }
        for n in range(count)
    ]


def load(path: str, seed: int = 0, **settings: Any) -> Data:
    return load_data(
        DataSettings(**{"source": "jsonl", "questions": path, "limit": None, **settings}), seed
    )


def ids(data: Data) -> list[str]:
    return [question.id for question in data.questions]


def test_splits_partition_the_set(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "q.jsonl", *rows("a", 60))
    parts = {part: ids(load(path, split=part)) for part in ("warm", "train", "dev", "test")}
    assert sorted(name for names in parts.values() for name in names) == sorted(
        ids(load(path, split=None))
    )
    for part, names in parts.items():
        assert {question.split for question in load(path, split=part).questions} == {part}
        assert len(names) < 60


def test_splits_are_fixed_and_load_split_ignores_limit_and_skip(tmp_path: Path) -> None:
    # Policies were trained on these splits; others would put learned questions into the test.
    first_and_last = [split_of(f"question {n}") for n in (95, 103, 49, 83, 104, 68, 107, 12)]
    assert first_and_last == [name for name in ("warm", "train", "dev", "test") for _ in range(2)]
    path = write_rows(tmp_path / "q.jsonl", *rows("a", 60))
    whole = ids(load(path, split="train"))
    few = DataSettings(source="jsonl", questions=path, split="test", limit=1, skip=2)
    assert [one.id for one in load_split(few, "train", 0)] == whole
    assert len(whole) > 3


def test_a_limit_draws_a_nested_sample_regardless_of_file_order(tmp_path: Path) -> None:
    whole = rows("a", 40)
    path = write_rows(tmp_path / "q.jsonl", *whole)
    backwards = write_rows(tmp_path / "r.jsonl", *whole[::-1])
    small, large = (ids(load(path, split=None, limit=n)) for n in (5, 20))
    assert small == large[:5] and len(large) == 20
    assert ids(load(backwards, split=None, limit=20)) == large
    assert ids(load(path, seed=1, split=None, limit=20)) != large


def test_the_paragraph_corpus_includes_questions_that_are_not_drawn(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "q.jsonl", *rows("a", 30))
    data = load(path, split=None, limit=3)
    assert len(data.passages) == 31
    assert data.notes[Event(EventKind.PASSAGE_MERGED, "same id and content")] == 29
    by_id = {passage.id: passage for passage in data.passages}
    for question in data.questions:
        assert [by_id[name].title for name in question.supporting_ids] == [question.id]


def test_gold_is_found_by_title_if_the_corpus_words_a_paragraph_differently(
    tmp_path: Path,
) -> None:
    question = rows("a", 1)[0]
    question["paragraphs"][1]["is_supporting"] = True
    corpus = [
        {"id": "1", "title": "a0", "text": "It was made by Ada."},
        {"id": "2", "title": "Noise", "text": "Nothing at all was made."},
    ]
    path = write_rows(tmp_path / "q.jsonl", question)
    data = load(path, split=None, corpus=write_rows(tmp_path / "c.jsonl", *corpus))
    assert data.questions[0].supporting_ids == ("1", "2"), "not only the one with equal text"


def test_a_mix_draws_from_each_set_and_the_limit_caps_the_total(tmp_path: Path) -> None:
    one = SetSettings(
        source="jsonl", questions=write_rows(tmp_path / "1", *rows("a", 9)), split=None
    )
    two = SetSettings(
        source="musique", questions=write_rows(tmp_path / "2", *rows("b", 9)), split=None, limit=4
    )
    data = load_data(DataSettings(mix=(one, two), limit=None), 0)
    assert {s: sum(q.source == s for q in data.questions) for s in ("jsonl", "musique")} == {
        "jsonl": 9,
        "musique": 4,
    }
    assert len(data.passages) == 19
    capped = load_data(DataSettings(mix=(one, two), limit=6), 0)
    assert len(capped.questions) == 6 and len(capped.passages) == 19


def test_skip_leaves_out_exactly_the_questions_of_a_shorter_sample(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "q.jsonl", *rows("a", 40))
    one = SetSettings(source="jsonl", questions=path, split=None)
    for settings in (
        {"source": "jsonl", "questions": path, "split": None},
        {"mix": (one,)},
        {"source": "atlas", "split": "train", "cities": 500},
    ):
        first, second, both = (
            ids(load_data(AtlasSettings(limit=limit, skip=skip, **settings), 0))
            for limit, skip in ((5, 0), (7, 5), (12, 0))
        )
        assert (len(first), len(second)) == (5, 7)
        assert sorted(first + second) == sorted(both), "no repeats and no gaps"
    with pytest.raises(ConfigError, match=r"no questions are left: .*jsonl: questions skipped: 40"):
        load(path, split=None, skip=40)


def test_one_id_in_two_sets_is_refused_naming_both(tmp_path: Path) -> None:
    paths = [write_rows(tmp_path / name, *rows("a", 3)) for name in ("1.jsonl", "2.jsonl")]
    same = [SetSettings(source="jsonl", questions=path, split=None) for path in paths]
    assert len(load_data(DataSettings(mix=tuple(same), limit=None), 0).questions) == 3
    other = SetSettings(source="nq", questions=paths[1], split=None)
    with pytest.raises(ConfigError, match=r"id 'a\d' is also at .*1.jsonl:\d, with other content"):
        load_data(DataSettings(mix=(same[0], other), limit=None), 0)


def test_gold_is_found_through_merged_ids_and_titles(tmp_path: Path) -> None:
    base = {"question": "Who?", "answers": ["Ada"]}
    kept = {"title": "Omega", "text": "o"}
    questions = write_rows(
        tmp_path / "q.jsonl",
        {**base, "id": "by-id", "supporting_ids": ["copy"]},
        {**base, "id": "by-title", "supporting_titles": ["Alpha"]},
        {**base, "id": "lost", "supporting_titles": ["Alpha", "Omega"]},
        {**base, "id": "gone", "paragraphs": [{**kept, "id": "g", "is_supporting": True}]},
    )
    corpus = write_rows(
        tmp_path / "c.jsonl",
        {"id": "kept", "title": "Alpha", "text": "a"},
        {"id": "copy", "title": "Alpha", "text": "a"},
    )
    data = load(questions, split=None, corpus=corpus)
    found = {question.id: question.supporting_ids for question in data.questions}
    assert found == {"by-id": ("kept",), "by-title": ("kept",), "lost": ("kept",), "gone": ()}
    for cited in ("questions that cite passages", "cited passages"):
        assert data.notes[Event(EventKind.WARNING, f"{cited} not in the corpus")] == 2


def test_paragraphs_have_the_ids_of_the_passages_that_were_kept(tmp_path: Path) -> None:
    def asked(name: str) -> dict[str, Any]:
        made = {
            "id": f"{name}-1",
            "title": "T",
            "text": "It was made by Ada.",
            "is_supporting": True,
        }
        return {
            "id": name,
            "question": f"Who made {name}?",
            "answers": ["Ada"],
            "paragraphs": [made],
        }

    data = load(write_rows(tmp_path / "q.jsonl", asked("a"), asked("b")))
    for question in data.questions:
        assert {p.id for p in question.paragraphs} == set(question.supporting_ids) == {"a-1"}


def test_titles_of_cut_documents_and_stale_ids_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "Ada.txt").write_text("Ada wrote programs. " * 100)
    asked = {"question": "Who?", "answers": ["Bob"], "supporting_titles": ["Ada"]}
    cited = {"question": "Who then?", "answers": ["Bob"], "supporting_ids": ["docs/Ada.txt#1"]}
    stale = {**cited, "question": "Who?!", "supporting_ids": ["docs/Ada.txt#1", "docs/Ada.txt#99"]}
    rows = [{"id": "by title", **asked}, {"id": "by id", **cited}, {"id": "stale", **stale}]
    questions = write_rows(tmp_path / "q.jsonl", *rows)
    data = load(questions, split=None, corpus=str(tmp_path / "docs"))
    note = "questions with a supporting title of several passages"
    (line,) = (line for line in data.describe_notes() if note in line)
    assert line.endswith(": 1")
    assert data.incomplete == {("jsonl", "stale")}


def test_titles_that_do_not_match_are_listed_with_three_examples(tmp_path: Path) -> None:
    titles = ["Miss 1", "Miss 2", "Miss\x1b 3", "Miss 4", "ADA_LOVELACE"]
    asked = [
        {"id": str(n), "question": f"Who {n}?", "answers": ["Ada"], "supporting_titles": [title]}
        for n, title in enumerate(titles)
    ]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "Ada_Lovelace.txt").write_text("Ada wrote programs.")
    questions = write_rows(tmp_path / "q.jsonl", *asked)
    data = load(questions, split=None, corpus=str(tmp_path / "docs"))
    lines = list(data.describe_notes())
    (missing,) = (line for line in lines if line.startswith("warning: cited passages"))
    assert missing.startswith('warning: cited passages not in the corpus: 4, such as "Miss')
    assert missing.count('"Miss') == 3
    assert "\x1b" not in missing
    assert '; the corpus has titles such as "Ada Lovelace" and ids such as ' in missing
    assert missing.endswith('"docs/Ada_Lovelace.txt"')
    assert any(line.endswith(': 1, such as "ADA_LOVELACE"') for line in lines)


def test_faults_of_all_sets_are_reported_together(tmp_path: Path) -> None:
    bad = [write_rows(tmp_path / name, {"id": "x"}) for name in ("1.jsonl", "2.jsonl")]
    mix = tuple(SetSettings(source="jsonl", questions=path) for path in bad)
    with pytest.raises(ConfigError, match=r"(?s)1\.jsonl:1: .*2\.jsonl:1: "):
        load_data(DataSettings(mix=mix), 0)


def test_faults_of_questions_and_corpus_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"id": "torn')
    twice = [{"id": "a", "title": "T", "text": text} for text in "xy"]
    corpus = ["absent.jsonl", write_rows(tmp_path / "c.jsonl", *twice)]
    with pytest.raises(ConfigError) as raised:
        load(str(tmp_path / "q.jsonl"), corpus=corpus)
    torn, absent, repeated = str(raised.value).splitlines()
    assert "q.jsonl:1: is not JSON" in torn
    assert absent.startswith("data.corpus: absent.jsonl does not exist")
    assert "c.jsonl:2: passage 'a' is also at" in repeated


@pytest.mark.parametrize("change", [{"questions": ""}, {"corpus": " "}, {"corpus": ["c", ""]}])
def test_a_blank_path_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is empty; name a file"):
        DataSettings(source="jsonl", **change)


def test_a_missing_corpus_and_an_empty_split_are_refused(tmp_path: Path) -> None:
    bare = write_rows(tmp_path / "q.jsonl", {"id": "x", "question": "Who?", "answers": ["Ada"]})
    with pytest.raises(ConfigError, match=r"data\.corpus is not set"):
        load(bare, split=None)
    path = write_rows(tmp_path / "p.jsonl", *rows("a", 4))
    with pytest.raises(ConfigError, match=r"no questions are left.*split warm, left out: 3"):
        load(path, split="dev")


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real sets are not beside the checkout")
def test_the_real_mix_has_gold_for_every_question() -> None:
    sets = {"hotpotqa": "hotpotqa", "2wiki": "2wikimultihopqa", "musique": "musique"}
    mix = tuple(
        SetSettings.model_validate(
            {"source": source, "questions": str(SHARED / f"{name}_shared.jsonl.gz"), "limit": 50}
        )
        for source, name in sets.items()
    )
    corpus = tuple(str(SHARED / f"{name}_corpus.jsonl.gz") for name in sets.values())
    data = load_data(DataSettings(mix=mix, corpus=corpus, limit=None), 0)
    assert len(data.questions) == 150
    assert not any(note.kind is EventKind.WARNING for note in data.notes)
    known = {passage.id for passage in data.passages}
    for question in data.questions:
        assert question.supporting_ids and known.issuperset(question.supporting_ids)


def test_a_limit_counts_only_the_questions_that_fit() -> None:
    settings = AtlasSettings(limit=30, cities=500)
    data = load_data(settings, 0)
    known = {passage.id for passage in data.passages}
    assert all(known.issuperset(question.supporting_ids) for question in data.questions)
    assert {question.split for question in data.questions} == {"train"}
    answerable = load_data(settings, 0, unfit=unanswerable)
    assert len(answerable.questions) == 30
    assert all(question.answerable for question in answerable.questions)
    kept = [question.id for question in data.questions if question.answerable]
    assert len(kept) < 30
    assert set(kept) < {question.id for question in answerable.questions}


def test_a_protocol_that_fits_no_question_of_atlas_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"without paragraphs\. Set data\.references"):
        load_data(AtlasSettings(cities=500), 0, unfit=lambda _: "without paragraphs")
