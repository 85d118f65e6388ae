"""Readers of question sets: every format, and faulty files."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_dataset import write_rows

from branchwise.base import comparable
from branchwise.base.errors import ConfigError, Faults
from branchwise.base.text import composed, map_texts
from branchwise.sources.files import parse_object, read_rows
from branchwise.sources.readers import LICENCES, read_set
from branchwise.types import Question

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def only(source: str, path: str) -> Question:
    ((placed,), _) = read_set(source, path)
    return placed.question


OURS = {
    "id": "q1",
    "question": "Who wrote it?",
    "answers": ["J. K. Rowling", "3.5 million"],
    "hops": 2,
    "paragraphs": [
        {"pid": "p1", "title": "A", "text": "a", "is_supporting": True},
        {"title": "B", "text": "b"},
    ],
    "colour": "red",
}
HOTPOT = {
    "_id": "h1",
    "question": "Which river?",
    "answer": "Tamar",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Alder", 0], ["Birch", 1], ["Alder", 2]],
    "context": [["Alder", ["First.", " Second."]], ["Cedar", ["Other."]], ["Birch", ["B."]]],
}


def test_our_own_format(tmp_path: Path) -> None:
    question = only("jsonl", write_rows(tmp_path / "q.jsonl", OURS))
    assert question.answers == ("J. K. Rowling", "3.5 million")
    assert question.supporting_titles == ("A",)
    assert [(p.id, p.is_supporting) for p in question.paragraphs] == [("p1", True), (None, False)]
    assert question.extra == {"colour": "red"}
    assert question.source == "jsonl" and question.licence is None


def test_the_licence_is_that_of_the_line_or_else_of_its_source(tmp_path: Path) -> None:
    question = only("musique", write_rows(tmp_path / "q.jsonl", OURS))
    assert (question.source, question.licence) == ("musique", LICENCES["musique"])
    licensed = {**OURS, "licence": "CC0"}
    assert only("musique", write_rows(tmp_path / "q.jsonl", licensed)).licence == "CC0"


def test_hotpotqa_format(tmp_path: Path) -> None:
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([HOTPOT]))
    question = only("hotpotqa", str(path))
    assert (question.id, question.answers, question.type, question.hops) == (
        "h1",
        ("Tamar",),
        "bridge",
        2,
    )
    assert question.supporting_titles == ("Alder", "Birch")
    assert [(p.title, p.text, p.is_supporting) for p in question.paragraphs] == [
        ("Alder", "First. Second.", True),
        ("Cedar", "Other.", False),
        ("Birch", "B.", True),
    ]
    assert question.extra["level"] == "hard"


def test_the_hub_format_of_hotpotqa_gives_the_same_question(tmp_path: Path) -> None:
    row = {
        **{key: value for key, value in HOTPOT.items() if key != "_id"},
        "id": "h1",
        "supporting_facts": {"title": ["Alder", "Birch", "Alder"], "sent_id": [0, 1, 2]},
        "context": {
            "title": ["Alder", "Cedar", "Birch"],
            "sentences": [["First.", " Second."], ["Other."], ["B."]],
        },
    }
    own = tmp_path / "own.json"
    own.write_text(json.dumps([HOTPOT]))
    hub = only("hotpotqa", write_rows(tmp_path / "hub.jsonl", row))
    assert hub == only("hotpotqa", str(own))


def test_2wiki_format(tmp_path: Path) -> None:
    row = {
        **HOTPOT,
        "type": "bridge_comparison",
        "context": [["Alder", ["One.", "Two."]]],
        "evidences": [["Alder", "river", "Tamar"]],
    }
    question = only("2wiki", write_rows(tmp_path / "2wiki.json", row))  # a .json file of lines
    assert (question.hops, question.paragraphs[0].text) == (4, "One. Two.")
    assert question.extra["evidences"] == [["Alder", "river", "Tamar"]]


def test_musique_keeps_the_answerable_and_the_unanswerable_question(tmp_path: Path) -> None:
    row = {
        "id": "3hop1__1_2_3",
        "question": "Where?",
        "answer": "Oslo",
        "answer_aliases": ["Christiania", "Oslo"],
        "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "N", "paragraph_text": "n", "is_supporting": True},
            {"idx": 1, "title": "M", "paragraph_text": "m", "is_supporting": False},
        ],
        "question_decomposition": [
            {"id": 1, "question": "A?", "answer": "a", "paragraph_support_idx": 0},
            {"id": 2, "question": "#1's b?", "answer": "b", "paragraph_support_idx": 1},
            {"id": 3, "question": "#2's c?", "answer": "Oslo", "paragraph_support_idx": None},
        ],
    }
    path = write_rows(tmp_path / "musique.jsonl", row, {**row, "answerable": False})
    with_it, without = [placed.question for placed in read_set("musique", path)[0]]
    assert with_it.answers == ("Oslo", "Christiania")
    assert (with_it.type, with_it.hops, with_it.supporting_titles) == ("3hop1", 3, ("N",))
    steps = with_it.extra["decomposition"]
    assert [step["support_title"] for step in steps] == ["N", "M", None]
    assert steps[1] == {"question": "#1's b?", "answer": "b", "support_title": "M"}
    assert (without.answerable, without.answers, without.extra["answer"]) == (False, (), "Oslo")
    assert without.id != with_it.id


def test_popqa_format(tmp_path: Path) -> None:
    path = tmp_path / "pop.tsv"
    answers = '"[""poet"", ""the \\""bard\\"""", """"]"'
    path.write_text(
        "id\tsubj\tprop\tobj\ts_wiki_title\tquestion\tpossible_answers\n"
        f"7\tAda\toccupation\tpoet\tAda (poet)\tWhat is Ada's job?\t{answers}\n"
    )
    question = only("popqa", str(path))
    assert (question.id, question.type, question.hops) == ("7", "occupation", 1)
    assert question.answers == ("poet", 'the "bard"')
    assert question.supporting_titles == ("Ada (poet)",)
    assert question.extra == {"subj": "Ada", "obj": "poet"}


def test_bamboogle_is_read_alike_from_csv_tsv_and_json(tmp_path: Path) -> None:
    comma, tab = tmp_path / "b.csv", tmp_path / "b.tsv"
    comma.write_text('\ufeffQuestion,Answer\r\n"Who, then?",Ada\r\n', encoding="utf-8")
    tab.write_text("question\tanswer\nWho, then?\tAda\n")
    listed = tmp_path / "b.json"
    listed.write_text(json.dumps({"data": [{"Question": "Who, then?", "Answer": "Ada"}]}))
    found = [only("bamboogle", str(path)) for path in (comma, tab, listed)]
    assert found[0] == found[1] == found[2]
    assert (found[0].question, found[0].answers, found[0].hops) == ("Who, then?", ("Ada",), 2)


def test_flashrag_format(tmp_path: Path) -> None:
    metadata = {
        "type": "comparison",
        "supporting_facts": {"title": ["A"], "sent_id": [0]},
        "context": {"title": ["A", "B"], "content": [["a1.", "a2."], ["b."]]},
    }
    row = {"id": "test_0", "question": "Which?", "golden_answers": ["A"], "metadata": metadata}
    question = only("2wiki", write_rows(tmp_path / "f.jsonl", row))
    assert question.id.startswith("test_0-")
    assert question.supporting_titles == ("A",)
    assert [p.text for p in question.paragraphs] == ["a1. a2.", "b."]
    other = {"id": "test_0", "question": "Another?", "golden_answers": ["B"]}
    assert only("nq", write_rows(tmp_path / "g.jsonl", other)).id != question.id


def test_nq_open_format(tmp_path: Path) -> None:
    question = only(
        "nq", write_rows(tmp_path / "nq.jsonl", {"question": "when?", "answer": ["2014"]})
    )
    assert (question.answers, question.type, question.hops) == (("2014",), "open_domain", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "  "}, "`question`: is empty"),
        ({"question": None}, "`question`: Input should be a valid string"),
        ({"answers": []}, "lacks answers"),
        ({"answers": ["", " "]}, "lacks answers"),
        ({"answers": {"a": "b"}}, r"`answers\[0\]`: Input should be a valid string"),
        ({"answers": [["a"], {"b": 1}]}, r"`answers\[1\]`: Input should be a valid string"),
        ({"hops": 2.5}, "`hops`: Input should be a valid integer"),
        ({"hops": 0}, "`hops`: Input should be greater than or equal to 1"),
        ({"answerable": "perhaps"}, "`answerable`: Input should be a valid boolean"),
        ({"paragraphs": [{"title": "A"}]}, r"`paragraphs\[0\].text`: Field required"),
        ({"id": True}, "`id`: Input should be a valid string"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_rows(tmp_path / "q.jsonl", OURS, {**OURS, "id": "q2", **change})
    with pytest.raises(ConfigError, match=f"q.jsonl:2: .*{message}"):
        read_set("jsonl", path)


def test_a_misspelt_field_of_answers_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "q.jsonl", OURS, {"id": "q2", "question": "Who?", "answrs": "Ada"})
    with pytest.raises(ConfigError, match=r"q.jsonl:2: .*rename `answrs` to `answers`"):
        read_set("jsonl", path)


def test_an_unanswerable_question_needs_no_answers(tmp_path: Path) -> None:
    row = {"id": "u", "question": "Who?", "answerable": False}
    assert only("jsonl", write_rows(tmp_path / "q.jsonl", row)).answers == ()


def test_the_first_twenty_faults_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "torn", \n[1]\n{"id": NaN}\n\n' + '{"id": "x"}\n' * 30)
    with pytest.raises(ConfigError) as raised:
        read_set("jsonl", str(path))
    lines = str(raised.value).splitlines()
    assert len(lines) == 21
    assert "q.jsonl:1: is not JSON" in lines[0]
    assert "q.jsonl:2: is a list, not an object" in lines[1]
    assert "q.jsonl:3: has NaN" in lines[2]
    assert "q.jsonl:5: `question`: Field required" in lines[3]
    assert lines[-1] == "… and 13 more"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"id": "a", "text": "torn\n',
            "is not JSON (Unterminated string starting at character 21)",
        ),
        ('{"id": "a\tb"}', "is not JSON (Invalid control character at character 10)"),
        ("null", "is null, not an object"),
    ],
)
def test_a_malformed_line_gets_a_plain_error_message(line: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_object(line)
    assert str(raised.value) == message


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv"])
def test_a_bad_byte_and_the_faults_after_it_are_reported_by_line(
    tmp_path: Path, ending: str
) -> None:
    header, line = (
        (b"question,answer", b"who,Ada") if ending == "csv" else (b"{}", b'{"id": "Ada"}')
    )
    lines = [header, *[line] * 2000]
    lines[1499] = lines[1499].replace(b"A", b"\xe9")
    lines[1799] = b"one,two,three" if ending == "csv" else b"[]"
    text = b"\r\n".join(lines)
    path = tmp_path / f"q.{ending}"
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    faults = Faults()
    assert len(list(read_rows(path, faults))) >= 1998
    with pytest.raises(ConfigError, match=r"(?s):1500: is not UTF-8 \(byte 0xe9 at .*:1800: "):
        faults.raise_any()
    assert faults.count == 2


@pytest.mark.parametrize(
    ("source", "row"),
    [
        ("hotpotqa", {**HOTPOT, "context": {"title": ["A", "B"], "sentences": [["x"]]}}),
        ("hotpotqa", {**HOTPOT, "supporting_facts": {"title": ["A"], "sent_id": [0, 1]}}),
        (
            "flashrag",
            {
                "id": "f",
                "question": "Who?",
                "golden_answers": ["Ada"],
                "metadata": {"context": {"title": ["A"], "content": [["x"], ["y"]]}},
            },
        ),
    ],
)
def test_columns_of_unequal_length_are_refused(
    tmp_path: Path, source: str, row: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigError, match=r"q.jsonl:1: `[a-z_.]+`: the lists have \d and \d entries"
    ):
        read_set(source, write_rows(tmp_path / "q.jsonl", row))


def test_damaged_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(
        ("\n".join(json.dumps({**OURS, "id": str(i)}) for i in range(99))).encode()
    )
    for name, data, message in [
        ("cut.jsonl.gz", whole[:-20], r"cut.jsonl.gz:\d+: the packed data is damaged"),
        ("latin.jsonl", '{"id": "é"}'.encode("latin-1"), "latin.jsonl:1: is not UTF-8"),
        ("nothing.jsonl", b"\n", "nothing.jsonl: contains no questions"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=message):
            read_set("jsonl", str(tmp_path / name))
    with pytest.raises(ConfigError, match=r"questions of `jsonl`: .* does not exist"):
        read_set("jsonl", str(tmp_path / "absent.jsonl"))
    with pytest.raises(ConfigError, match=r"its `questions` is not set"):
        read_set("jsonl", None)


def test_repeated_lines_are_counted_and_conflicting_ids_refused(tmp_path: Path) -> None:
    _, repeated = read_set("jsonl", write_rows(tmp_path / "same.jsonl", OURS, OURS))
    assert repeated == 1
    other = write_rows(tmp_path / "other.jsonl", OURS, {**OURS, "answers": ["Other"]})
    with pytest.raises(ConfigError, match=r"other.jsonl:2: id 'q1' is also at .*other.jsonl:1,"):
        read_set("jsonl", other)


def test_hub_datasets_are_read_by_name_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    tables = {"test": [{"question": "when?", "answer": ["2014"]}], "dev": [OURS]}

    def load(path: str, config: str | None) -> Any:
        if path != "owner/set":
            raise ConnectionError("no route")
        return tables

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert only("hub", "owner/set").question == "when?"
    assert only("hub", "owner/set:config:dev").id == "q1"
    with pytest.raises(ConfigError, match="unknown split 'valid'; use one of dev, test"):
        read_set("hub", "owner/set::valid")
    with pytest.raises(ConfigError, match=r"cannot load owner/other .*and `questions` to the file"):
        read_set("hub", "owner/other")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
blankless = st.text(min_size=1).filter(str.strip)


@given(
    rows=st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=5),
    ascii_only=st.booleans(),
    packed=st.booleans(),
)
def test_written_jsonl_rows_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    ascii_only: bool,
    packed: bool,
) -> None:
    path = tmp_path_factory.mktemp("rows") / ("r.jsonl.gz" if packed else "r.jsonl")
    text = "\r\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    faults = Faults()
    assert [row for _, row in read_rows(path, faults)] == rows
    assert not faults.count


@given(st.text())
def test_parse_object_returns_a_dict_or_raises_a_value_error(line: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_object(line), dict)


# An answer without anything to compare, such as a soft hyphen alone, is dropped.
@given(
    id=blankless,
    question=blankless,
    answers=st.lists(blankless.filter(comparable), min_size=1),
    extra=json_values,
)
def test_a_valid_question_is_read_verbatim_in_composed_form(
    tmp_path_factory: pytest.TempPathFactory,
    id: str,
    question: str,
    answers: list[str],
    extra: Any,
) -> None:
    row = {"id": id, "question": question, "answers": answers, "kept": extra}
    found = only("jsonl", write_rows(tmp_path_factory.mktemp("q") / "q.jsonl", row))
    assert (found.id, found.question) == (composed(id), composed(question))
    assert found.answers == tuple(dict.fromkeys(map(composed, answers)))
    assert found.extra == {"kept": map_texts(extra, composed)}


def test_a_line_nested_too_deeply_is_a_value_error() -> None:
    # Shallow enough for the parser, but too deep for the search for surrogates.
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_object('{"a":' * 600 + "1" + "}" * 600)


def test_lone_surrogates_are_replaced() -> None:
    row = parse_object('{"a": ["\\ud800x", "\\ud83d\\ude00"], "\\udc00": 1}')
    assert row == {"a": ["\ufffdx", "\U0001f600"], "\ufffd": 1}


@pytest.mark.shared
@pytest.mark.skipif(
    not SHARED.is_dir(), reason="the real question sets are not beside the checkout"
)
@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("hotpotqa", "hotpotqa", 765),
        ("2wikimultihopqa", "2wiki", 527),
        ("musique", "musique", 395),
        ("popqa", "popqa", 1534),
        ("bamboogle", "bamboogle", 101),
        ("nq", "nq", 803),
    ],
)
def test_the_real_sets_are_read_completely(name: str, source: str, count: int) -> None:
    questions, repeated = read_set(source, str(SHARED / f"{name}_shared.jsonl.gz"))
    assert (len(questions), repeated) == (count, 0)
    for placed in questions:
        question = placed.question
        marked = {p.title for p in question.paragraphs if p.is_supporting}
        # PopQA marks the object's passage too, and cites only the subject's.
        assert source == "popqa" or marked <= set(question.supporting_titles)
        assert all(paragraph.id for paragraph in question.paragraphs)
