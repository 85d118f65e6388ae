"""Files as strangers have them: packed, misnamed, in other dialects, in published layouts."""

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_dataset import write_rows

from branchwise.base.errors import ConfigError, Faults
from branchwise.sources.corpus import load_corpus
from branchwise.sources.files import read_rows
from branchwise.sources.load import load_data
from branchwise.sources.readers import read_set
from branchwise.sources.settings import DataSettings
from branchwise.types import Question

QUESTION = {"id": "q1", "question": "Capital of France?", "answers": ["Paris"]}
LINES = "".join(json.dumps({**QUESTION, "id": f"q{n}"}) + "\n" for n in range(3)).encode()


def zipped(*contents: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents:
            archive.writestr(name, content)
    return buffer.getvalue()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def questions(source: str, path: Path) -> list[Question]:
    return [placed.question for placed in read_set(source, str(path))[0]]


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        gzip.compress(LINES),
        bz2.compress(LINES),
        lzma.compress(LINES),
        zipped(("q.jsonl", LINES)),
        zipped(("folder/", b""), ("folder/q.jsonl", LINES), ("__MACOSX/q.jsonl", b"x")),
        as_parquet([json.loads(line) for line in LINES.splitlines()]),
        json.dumps([json.loads(line) for line in LINES.splitlines()]).encode(),
        json.dumps([json.loads(line) for line in LINES.splitlines()], indent=2).encode(),
        json.dumps({"version": 1, "data": [json.loads(x) for x in LINES.splitlines()]}).encode(),
        json.dumps({"data": [json.loads(x) for x in LINES.splitlines()]}, indent=1).encode(),
        b"\n \n" + LINES,
        b"\xef\xbb\xbf" + LINES,
        LINES.decode().encode("utf-16"),
        gzip.compress(as_parquet([json.loads(line) for line in LINES.splitlines()])),
    ],
    ids=lambda content: str(len(content)),  # the content has the time
)
@pytest.mark.parametrize("name", ["q.jsonl", "q.json", "test.csv", "train"])
def test_the_content_of_a_file_decides_how_it_is_read(
    content: bytes, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert [question.id for question in questions("jsonl", tmp_path / name)] == ["q0", "q1", "q2"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"(\xb5/\xfd" + b"x" * 99, "zstd"),
        (b"%PDF-1.7\n" + b"x" * 99, "is a PDF"),
        (b"SQLite format 3\0" + b"x" * 99, "SQLite"),
        (b"ARROW1\0\0" + b"x" * 99, "Arrow"),
        (zipped(("[Content_Types].xml", b"<x/>"), ("xl/a.xml", b"<x/>")), "Office document"),
        (zipped(("a.jsonl", LINES), ("b.jsonl", LINES)), "zip archive of 2 files"),
        (zipped(), "zip archive of 0 files|neither JSONL|binary"),
        (b"<!doctype html><html>", "web page"),
        (b"\x01\0\0\0" * 99, "binary"),
        ('{"question": "?"}'.encode("utf-16-le"), "UTF-16 without a mark"),
        (b"PAR1" + b"x" * 99, "parquet data is damaged"),
        (b"just some words\n" * 50, "neither JSONL"),
    ],
    ids=lambda part: str(len(part)),
)  # fmt: skip
def test_a_file_of_another_kind_is_one_fault_that_names_it(
    content: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / "q.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=says) as raised:
        read_set("jsonl", str(tmp_path / "q.jsonl"))
    assert len(str(raised.value).splitlines()) == 1


def test_a_pipe_or_a_device_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a pipe or a device")):
        with pytest.raises(ConfigError, match=says):
            read_set("jsonl", str(path))
        with pytest.raises(ConfigError, match=says):
            load_corpus([path], 100)
    with pytest.raises(ConfigError, match="is a folder"):
        read_set("jsonl", str(tmp_path))


LONG = "word " * 40_000


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.tsv", 'id\ttext\n1\t"Heroes" is a song.\n', [("1", '"Heroes" is a song.')]),
        ("b.tsv", 'id\ttext\n1\t"""Heroes"" is a song."\n', [("1", '"Heroes" is a song.')]),
        ("c.csv", 'id,text\n1,"two\nlines, a"\n\n2,x\n', [("1", "two\nlines, a"), ("2", "x")]),
        ("d.csv", "id;text\n1;a, b\n", [("1", "a, b")]),
        ("e.csv", f"id,text\n1,{LONG}\n2,x\n", [("1", LONG), ("2", "x")]),
        ("f.tsv", 'id\ttext\n2\t5" disk\n3\t"open\n', [("2", '5" disk'), ("3", '"open')]),
        ("g.txt", "id\ttext\r\n1\ta\r\n", [("1", "a")]),
        ("h.csv", "\ufeffid,text\r\n1,a\r\n", [("1", "a")]),
        ("i.csv", "id|text\n1|a, b\n", [("1", "a, b")]),
    ],
)  # fmt: skip
def test_delimited_files_of_any_dialect_are_read(
    name: str, text: str, rows: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, newline="")
    faults = Faults()
    found = [(row["id"], row["text"]) for _, row in read_rows(tmp_path / name, faults)]
    faults.raise_any()
    assert found == rows


def test_a_quotation_mark_after_many_plain_rows_is_read(tmp_path: Path) -> None:
    plain = "".join(f"{n},plain\n" for n in range(30_000))
    (tmp_path / "q.csv").write_text(f'id,text\n{plain}x,"a, ""b"""\n')
    *_, (place, last) = read_rows(tmp_path / "q.csv", Faults())
    assert (place, last) == (f"{tmp_path / 'q.csv'}:30002", {"id": "x", "text": 'a, "b"'})


def test_faults_of_a_delimited_file_name_the_line_on_which_the_row_begins(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('question,answer\n"two\nlines",Ada\n\nwho,\na,b,c\nwhen,1990\n')
    with pytest.raises(ConfigError) as raised:
        read_set("jsonl", str(path))
    first, second = str(raised.value).splitlines()
    assert first.startswith(f"{path}:5: lacks answers")
    assert second == f"{path}:6: has 3 fields, but the header has 2 columns"


ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("jsonl", {"question": "Who?", "answer": "Ada"}, {"answers": ("Ada",)}),
    ("jsonl", {"question": "Who?", "answers": "Ada"}, {"answers": ("Ada",)}),
    ("jsonl", {"question": "When?", "answers": [1990]}, {"answers": ("1990",)}),
    ("jsonl", {"question": "When?", "answers": 1990.0}, {"answers": ("1990",)}),
    ("jsonl", {"question": "?", "answers": '["a", "b"]'}, {"answers": ("a", "b")}),
    ("jsonl", {"question": "?", "answers": True}, {"answers": ("yes",)}),
    ("jsonl", {"question": "?", "answers": "['a', 'b']"}, {"answers": ("a", "b")}),
    ("jsonl", {"question": "?", "answers": "('a',)"}, {"answers": ("a",)}),
    ("jsonl", {"question": "?", "answers": "(c) 1990"}, {"answers": ("(c) 1990",)}),
    ("jsonl", {"question": "?", "answers": "(1, 2)"}, {"answers": ("(1, 2)",)}),
    ("jsonl", {"id": 10**400, "question": "?", "answers": 3}, {"id": str(10**400)}),
    ("jsonl", {"question": "?", "answers": ["\u200b", "y"]}, {"answers": ("y",)}),
    ("jsonl", {"question": "?", "answer": "y", "answerable": None}, {"answerable": True}),
    ("jsonl", {"question": "?", "answer": "y", "answerable": "yes", "hops": "NA"}, {"hops": None}),
    ("jsonl", {"query_id": 7, "query": "?", "answers": ["y"]}, {"id": "7", "question": "?"}),
    ("jsonl", {"id": 4.0, "question": "?", "answers": ["y"], "hops": 2.0}, {"id": "4", "hops": 2}),
    ("jsonl", {"question": "?", "answers": ["y"], "hops": "2", "answerable": "1"}, {"hops": 2}),
    ("jsonl", {"question": "?", "answerable": 0}, {"answerable": False}),
    ("jsonl", {"question": "?", "answer": "y", "hops": "", "type": ""}, {"hops": None}),
    (
        "jsonl",
        {"question": "?", "answer": "y", "supporting_titles": "Paris"},
        {"supporting_titles": ("Paris",)},
    ),
    ("jsonl", {"_id": "b1", "question": "?", "answer": "y"}, {"id": "b1"}),
    ("hub", {"url": "x", "question": "?", "answers": ["y", "z"]}, {"answers": ("y", "z")}),
    (
        "hub",
        {"question": "?", "question_id": "t1", "answer": {"value": "A", "aliases": ["A", "B"]}},
        {"id": "t1", "answers": ("A", "B")},
    ),
    (
        "hub",
        {"id": "1", "title": "T", "context": "y is it.", "question": "?",
         "answers": {"text": ["y", "y"], "answer_start": [0, 0]}},
        {"answers": ("y",), "supporting_titles": ("T",), "type": "span"},
    ),
    (
        "reading",
        {"id": "1", "title": "T", "context": "It.", "question": "?",
         "answers": {"text": [], "answer_start": []}},
        {"answerable": False},
    ),
    (
        "2wiki",
        {"_id": "w", "question": "?", "answer": "y", "type": "comparison",
         "supporting_facts": '[["A", 0]]', "context": '[["A", ["One.", "Two."]]]'},
        {"supporting_titles": ("A",)},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "row", "expected"), ROWS)
def test_published_and_exported_rows_are_read(
    source: str,
    row: dict[str, Any],
    expected: dict[str, Any],
    tmp_path: Path,
    hub: Callable[..., str],
) -> None:
    name = hub(row) if source == "hub" else write_rows(tmp_path / "q.jsonl", row)
    ((placed,), _) = read_set(source, name)
    read = placed.question.model_dump()
    assert {name: read[name] for name in expected} == expected


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns a function that puts rows into a set of the hub."""

    def put(*rows: dict[str, Any]) -> str:
        pytest.importorskip("datasets")
        monkeypatch.setattr("datasets.load_dataset", lambda path, config: {"train": rows})
        return "owner/set"

    return put


def test_a_table_export_of_questions_needs_neither_ids_nor_lists(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("question,answer\nCapital of France?,Paris\nCapital of Japan?,Tokyo\n")
    first, second = questions("jsonl", path)
    assert (first.answers, second.answers) == (("Paris",), ("Tokyo",))
    assert first.id != second.id and first.id.startswith("jsonl-")


def test_a_repeated_question_without_an_id_gets_all_its_answers(tmp_path: Path) -> None:
    rows = [{"question": "who sings", "answer": [answer]} for answer in ("A", "B", "A")]
    placed, repeated = read_set("nq", write_rows(tmp_path / "q.jsonl", *rows))
    assert [p.question.answers for p in placed] == [("A", "B")]
    assert repeated == 2


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"question": "?", "answers": "['b' 'c']"}], "cannot be read; write it as JSON"),
        ([{"question": "?", "answer": {"value": "<unk>", "aliases": []}}], "lacks answers"),
        ([{"question": "?", "answers": ["No Answer Present."]}], "lacks answers"),
        ([{"q": "?", "a": "y"}], "the row has q, a"),
        (
            [{"question": "?", "answerable": False}, {"question": "?", "answers": ["y"]}],
            "with other content",
        ),
    ],
)
def test_what_looks_like_an_answer_and_is_none_is_refused(
    rows: list[dict[str, Any]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        read_set("jsonl", write_rows(tmp_path / "q.jsonl", *rows))


def test_repeated_questions_keep_everything_that_their_rows_say(tmp_path: Path) -> None:
    rows = [
        {"question": "?", "answers": ["y"]},
        {"question": "?", "answers": ["z"], "supporting_titles": ["France"], "hops": 2},
    ]
    for order in (rows, rows[::-1]):
        ((placed,), _) = read_set("jsonl", write_rows(tmp_path / "q.jsonl", *order))
        assert set(placed.question.answers) == {"y", "z"}
        assert (placed.question.supporting_titles, placed.question.hops) == (("France",), 2)


@pytest.mark.parametrize("name", ["q.csv", "q.parquet"])
def test_a_repeated_column_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("question,answer,answer\na,b,c\n")
    else:
        arrays = [pa.array(["x"])] * 3
        pq.write_table(pa.Table.from_arrays(arrays, ["question", "answer", "answer"]), path)
    with pytest.raises(ConfigError, match="'answer' twice"):
        read_set("jsonl", str(path))


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"passage_id": "d1", "text": "Paris."}, "d1"),
        ({"_id": "doc1", "title": "France", "text": "word " * 150}, "doc1"),
        ({"_id": "doc1", "title": "", "text": "Paris."}, "doc1"),
        ({"docid": 7.0, "title": "France", "text": "Paris."}, "7"),
    ],
)
def test_a_beir_corpus_keeps_its_ids(row: dict[str, Any], name: str, tmp_path: Path) -> None:
    (passage,) = load_corpus([write_rows(tmp_path / "c.jsonl", row)], 100).passages
    assert passage.id == name


NFD = "Mu\u0308ller"


@pytest.mark.parametrize(
    ("cited", "file"),
    [
        ("Müller.md", f"{NFD}.md"),
        (f"{NFD}", "Müller.md"),
        ("guide – part 1", "guide - part 1.md"),
        ("Guide\u00a0Part 1.md", "guide part 1.md"),
        ("travel.html", "travel.md"),
        ("sub/travel.html", "sub/travel.md"),
        ("travel", "travel.md"),
        ("C#.md", "C#.md"),
        ("hash#1.md", "hash#1.md"),
        ("CO₂ emissions", "CO2 emissions.md"),
        ("emoji❤.md", "emoji❤\ufe0f.md"),
        ("rtl.md", "rtl\u200f.md"),
    ],
)
def test_a_document_is_found_under_every_name_that_looks_like_its_own(
    cited: str, file: str, tmp_path: Path
) -> None:
    path = tmp_path / "docs" / file
    path.parent.mkdir(parents=True)
    path.write_text("# Another title\nThe answer is Paris.")
    row = {"id": "q", "question": "?", "answers": ["Paris"], "supporting_titles": [cited]}
    settings = DataSettings(
        source="jsonl",
        questions=write_rows(tmp_path / "q.jsonl", row),
        corpus=str(tmp_path / "docs"),
        split=None,
    )
    data = load_data(settings, 0)
    (question,) = data.questions
    assert question.supporting_ids == (data.passages[0].id,), data.notes


def test_equal_texts_in_two_unicode_forms_are_one_passage_and_one_question(tmp_path: Path) -> None:
    corpus = [
        {"id": "a", "title": "Müller", "text": "Müller"},
        {"id": "b", "title": NFD, "text": NFD},
    ]
    loaded = load_corpus([write_rows(tmp_path / "c.jsonl", *corpus)], 100)
    assert len(loaded.passages) == 1
    rows = [{"question": f"Who is {name}?", "answer": "He"} for name in ("Müller", NFD)]
    assert len(read_set("jsonl", write_rows(tmp_path / "q.jsonl", *rows))[0]) == 1
