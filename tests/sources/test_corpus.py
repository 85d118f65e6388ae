"""The corpus: several files, merged duplicates, documents, and the questions' paragraphs."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_dataset import write_rows

from branchwise.base.errors import ConfigError, Faults
from branchwise.sources.corpus import Corpus, load_corpus
from branchwise.sources.documents import cut
from branchwise.types import Paragraph, Question, counts_by_text


def passage(name: str, text: str, title: str = "T") -> dict[str, str]:
    return {"id": name, "title": title, "text": text}


def test_identical_passages_of_several_files_are_merged(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "1.jsonl", passage("a", "x"), passage("b", "y"))
    two = tmp_path / "2.jsonl.gz"
    rows = [passage("a", "x"), passage("c", "y"), passage("d", "y", "Other")]
    two.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    corpus = load_corpus([one, two], 100)
    assert [found.id for found in corpus.passages] == ["a", "b", "d"]
    assert corpus.aliases == {"c": "b"}
    assert counts_by_text(corpus.counts) == {
        "passages read": 5,
        "passages merged: same id and content": 1,
        "passages merged: same content, another id": 1,
    }


def test_one_id_with_two_contents_is_refused_naming_both_places(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "1.jsonl", passage("z", "x"), passage("a", "x2"))
    two = write_rows(tmp_path / "2.jsonl", passage("a", "y"))
    with pytest.raises(ConfigError, match=r"2.jsonl:1: passage 'a' is also at .*1.jsonl:2, with"):
        load_corpus([one, two], 100)


def test_documents_are_cut_into_passages(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "no.txt").write_text("no")
    (folder / "empty.txt").write_text(" \n")
    (folder / "deep" / "guide.md").write_text(
        "preamble\n# The Guide #\n" + " ".join(map(str, range(25)))
    )
    (folder / "note.txt").write_text("a short note")
    (tmp_path / "texts.jsonl").write_text('{"text": "alone in a line"}\n')
    corpus = load_corpus([folder, tmp_path / "texts.jsonl"], 10)
    found = {p.id: (p.title, len(p.text.split())) for p in corpus.passages}
    assert found.pop(next(name for name in found if name.startswith("texts"))) == (
        "alone in a line",
        4,
    )
    assert found == {
        "docs/deep/guide.md#0": ("The Guide", 10),
        "docs/deep/guide.md#1": ("The Guide", 10),
        "docs/deep/guide.md#2": ("The Guide", 10),
        "docs/note.txt": ("note", 3),
    }
    assert str(tmp_path) not in "".join(p.id for p in corpus.passages)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# C#\n", "C#"),
        ("#  Title ##  \n", "Title"),
        ("#\n\ntext", "file name"),
        ("## Part\n#No heading\n# Title", "Title"),
        ("---\n# generated\ntitle: x\n---\n# Title", "Title"),
        ("---\n# Title", "Title"),
        ("```sh\n# comment\n```\n# Title", "Title"),
    ],
)
def test_a_document_is_titled_by_its_first_heading(tmp_path: Path, text: str, title: str) -> None:
    (tmp_path / "file_name.md").write_text(text)
    (passage,) = load_corpus([tmp_path], 100).passages
    assert passage.title == title


def test_search_r1_contents_are_split_into_title_and_text(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "c.jsonl",
        {"id": 7, "contents": '"Ada"\nwrote it'},
        {"id": 8, "title": "Ada", "contents": "Ada wrote it.\nAlone."},
        {"id": 9, "contents": "one two three four five six seven eight nine ten eleven twelve"},
    )
    corpus = {one.id: (one.title, one.text) for one in load_corpus([path], 100).passages}
    assert corpus["7"] == ("Ada", "wrote it")
    assert corpus["8"] == ("Ada", "Ada wrote it.\nAlone.")
    title, text = corpus["9"]
    assert text.startswith(title)
    assert len(title) < len(text), "a text without a title is not its own title"


def test_faults_of_a_corpus_are_listed_by_line(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "c.jsonl",
        {"id": "a", "title": "T"},
        {"id": "b", "title": 3, "text": "x"},
        {"id": "c", "title": "T", "text": " "},
        {"name": "d"},
    )
    with pytest.raises(ConfigError) as raised:
        load_corpus([path], 100)
    assert [line.partition("c.jsonl")[2] for line in str(raised.value).splitlines()] == [
        ":1: lacks the field 'text'",
        ":2: 'title' must be text, not a number",
        ":3: 'text' is empty",
        ":4: lacks the field 'text'",
    ]
    with pytest.raises(ConfigError, match=r"data\.corpus: .* does not exist"):
        load_corpus([tmp_path / "absent"], 100)
    (tmp_path / "bare").mkdir()
    with pytest.raises(ConfigError, match="the corpus is empty"):
        load_corpus([tmp_path / "bare"], 100)


def test_skipped_files_of_a_corpus_folder_are_counted_by_type(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.png", "rows.jsonl.gz", "LICENSE", ".hidden.pdf", "note.pdf"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "empty.md").write_text(" \n")
    (tmp_path / "note.txt").write_text("a note")  # converted from note.pdf
    corpus = load_corpus([tmp_path], 100)
    assert [found.text for found in corpus.passages] == ["a note"]
    assert counts_by_text(corpus.counts) == {
        "passages read": 1,
        "corpus files skipped, .png": 2,
        "corpus files skipped, .pdf": 1,
        "corpus files skipped, .jsonl": 1,
        "corpus files skipped, no ending": 1,
        "corpus documents skipped, without text": 1,
    }


def test_documents_that_must_be_converted_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "note.TXT").write_text("a note")
    for name in ("deep/my page.HTML", "b.pdf"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError) as raised:
        load_corpus([tmp_path], 100)
    assert sorted(str(raised.value).splitlines()) == [
        f"{tmp_path}/b.pdf: .pdf files are not read. Convert it in its folder with "
        "`pdftotext b.pdf b.txt`, or move it out of the corpus",
        f"{tmp_path}/deep/my page.HTML: .html files are not read. Convert it in its folder with "
        "`pandoc -t gfm-raw_html -o 'my page'.md 'my page.HTML'`, or move it out of the corpus",
    ]
    with pytest.raises(ConfigError, match=r"b\.pdf: \.pdf files are not read"):
        load_corpus([tmp_path / "b.pdf"], 100)


def test_the_paragraphs_of_questions_form_a_corpus() -> None:
    paragraphs = (Paragraph(title="A", text="a", id="p1"), Paragraph(title="B", text="b"))
    other = (Paragraph(title="B", text="b"), Paragraph(title="A", text="a", id="p2"))
    questions = [
        (f"f:{n}", Question(id=str(n), source="s", question="?", answers=("x",), paragraphs=given))
        for n, given in enumerate((paragraphs, other))
    ]
    faults, corpus = Faults(), Corpus()
    for place, question in questions:
        corpus.add_paragraphs(place, question, faults)
    assert not faults.count
    assert [(p.title, p.text) for p in corpus.passages] == [("A", "a"), ("B", "b")]
    assert corpus.aliases == {"p2": "p1"}


def test_a_paragraph_without_text_is_skipped_and_counted() -> None:
    paragraphs = tuple(
        Paragraph(title=t, text=text) for t, text in [("", ""), ("A", " "), ("A", "a")]
    )
    question = Question(id="q", source="s", question="?", answers=("x",), paragraphs=paragraphs)
    corpus = Corpus()
    corpus.add_paragraphs("f:1", question, Faults())
    assert [found.text for found in corpus.passages] == ["a"]
    assert counts_by_text(corpus.counts) == {
        "passages read": 1,
        "paragraphs skipped, without text": 2,
    }


@given(text=st.text(), passage_words=st.integers(1, 7))
def test_cutting_keeps_every_word_exactly_once(text: str, passage_words: int) -> None:
    pieces = list(cut("doc", "Title", text, passage_words))
    words = [piece.text.split() for piece in pieces]
    assert [word for piece in words for word in piece] == text.split()
    assert all(len(piece) == passage_words for piece in words[:-1])
    assert all(0 < len(piece) <= passage_words for piece in words[-1:])
    assert len({piece.id for piece in pieces}) == len(pieces)
    assert {piece.title for piece in pieces} <= {"Title"}
