"""Import and export of pairs in the format of RAG-ProGuide."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sample_records import a_pair

from branchwise.agent.tags import content_of
from branchwise.base.errors import ConfigError
from branchwise.runs.proguide import (
    ProGuideRecord,
    from_proguide,
    read_proguide,
    to_proguide,
    write_proguide,
)
from branchwise.types import Message, Pair, pair_id

TAGS = {
    "query": "Query Generation",
    "evidence": "Evidence Extraction",
    "answer": "Answer Generation",
}
TEXT = st.text(max_size=20)
CONTENT = st.text(st.characters(exclude_characters="<>", codec="utf-8"), min_size=1, max_size=9)


@st.composite
def published(draw: st.DrawFn) -> ProGuideRecord:
    """Draws records in the form that the published code writes."""
    system, user = draw(TEXT), draw(TEXT)
    sides = [
        (draw(st.sampled_from(list(TAGS))), draw(CONTENT).strip(), draw(CONTENT)) for _ in "ab"
    ]
    (a, a_content, before), (b, b_content, after) = sides
    chosen, rejected = f"{before}<{a}> {a_content}</{a}>", f"<{b}>{b_content}</{b}>{after}"
    assume(chosen != rejected)
    return ProGuideRecord(
        instruction=system,
        input=user,
        prompt=f"System: {system}\nUser: {user}",
        chosen=chosen,
        rejected=rejected,
        chosen_action_type=TAGS[a],
        rejected_action_type=TAGS[b],
        chosen_content=a_content,
        rejected_content=b_content,
        layer=draw(st.integers(0, 30)),
    )


@given(record=published())
def test_a_published_record_survives_import_and_export(record: ProGuideRecord) -> None:
    assert to_proguide(from_proguide(record)) == record


@given(records=st.lists(published(), max_size=4), lines=st.booleans())
def test_written_files_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, records: list[ProGuideRecord], lines: bool
) -> None:
    path = tmp_path_factory.mktemp("proguide") / ("pairs.jsonl" if lines else "pairs.json")
    pairs = [from_proguide(record) for record in records]
    assert write_proguide(path, pairs) == len(pairs)
    assert read_proguide(path) == pairs
    if not lines:
        assert json.loads(path.read_text("utf-8")) == [r.model_dump() for r in records]


def test_exported_pairs_keep_the_fields_that_the_format_has(tmp_path: Path) -> None:
    ours = a_pair(depth=3)
    write_proguide(tmp_path / "p.json", [ours])
    (back,) = read_proguide(tmp_path / "p.json")
    carried = ["question", "prompt", "chosen", "rejected", "chosen_action", "rejected_action"]
    carried += ["depth", "stage"]
    assert back.model_dump(include=set(carried)) == ours.model_dump(include=set(carried))
    (raw,) = json.loads((tmp_path / "p.json").read_text())
    assert raw["layer"] == 2  # the published layers start at 0 for the children of the root
    assert raw["prompt"] == "System: Answer.\nUser: Question: Capital of France?"
    assert (raw["chosen_action_type"], raw["chosen_content"]) == ("Query Generation", "France")
    # An imported pair has the same id as the exported one.
    assert back.pair_id == pair_id(ours.prompt, ours.chosen[0].content, ours.rejected[0].content)


def test_pairs_that_the_format_cannot_hold_are_rejected_without_writing(tmp_path: Path) -> None:
    turns = (*a_pair().prompt, Message(role="assistant", content="<query>"))
    with pytest.raises(ConfigError, match=r"pair p1: .* system, user, assistant"):
        write_proguide(tmp_path / "p.json", [a_pair(), a_pair(prompt=turns)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[@, {}]", "item 2: `instruction`: Field required"),
        ('[@, {"instruction": "a', "is not JSON"),
        ("[@", "is not JSON"),
        ("[@,]", "is not JSON"),
        ("[@] x", "is not JSON"),
        ('@\n{"instruction": 1', ":2: is not JSON"),
        ("[1]", "item 1: is a number, not an object"),
        ("[" * 100_000, "is nested too deeply"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_bad_files_are_rejected_with_file_and_position(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.json"
    good = json.dumps(to_proguide(a_pair()).model_dump())
    path.write_bytes(text.replace("@", good).encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message) as caught:
        read_proguide(path)
    assert str(path) in str(caught.value)


def test_all_bad_records_are_reported_at_once(tmp_path: Path) -> None:
    good = to_proguide(a_pair()).model_dump()
    broken = {**good, "layer": -1}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([1, good, *[broken] * 21]))
    with pytest.raises(ConfigError) as caught:
        read_proguide(path)
    told = str(caught.value).splitlines()
    assert told[0] == f"{path}: item 1: is a number, not an object"
    assert told[1].startswith(f"{path}: item 3: `layer`: ")
    assert (len(told), told[-1]) == (21, "… and 2 more")
    # A truncated line does not hide errors in the next ones.
    path.write_text("\n".join([json.dumps(good)[:-9], json.dumps(good), '{"a": }', "{}"]))
    with pytest.raises(ConfigError) as caught:
        read_proguide(path)
    told = [line.removeprefix(f"{path}:")[:2] for line in str(caught.value).splitlines()]
    assert told == ["1:", "3:", "4:"]


@pytest.mark.parametrize("name", ["pairs.json.gz", "pairs.jsonl.gz"])
def test_gzip_files_are_read_and_written(tmp_path: Path, name: str) -> None:
    pairs = [from_proguide(to_proguide(a_pair(depth=depth))) for depth in (1, 2)]
    write_proguide(tmp_path / name, pairs)
    packed = (tmp_path / name).read_bytes()
    assert gzip.decompress(packed).startswith(b"{" if "jsonl" in name else b"[")
    assert read_proguide(tmp_path / name) == pairs
    (tmp_path / name).write_bytes(packed[:-12])
    with pytest.raises(ConfigError, match="packed data is damaged"):
        read_proguide(tmp_path / name)


def test_empty_files_have_no_pairs_and_missing_files_raise(tmp_path: Path) -> None:
    for name, text in (("a.json", " [ ] \n"), ("b.jsonl", ""), ("c.json", "\ufeff[]")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_proguide(tmp_path / name) == []
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_proguide(tmp_path / "none.json")


def test_pairs_of_identical_sides_are_rejected(tmp_path: Path) -> None:
    one = to_proguide(a_pair()).model_dump()
    same = {**one, "rejected": one["chosen"]}
    deep = {**one, "layer": 32_767}
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, (one, same, deep, same))))
    with pytest.raises(ConfigError) as told:
        read_proguide(tmp_path / "pairs.jsonl")
    faults = str(told.value).splitlines()
    place = f"{tmp_path}/pairs.jsonl"
    assert [fault.partition(": c")[0] for fault in faults if "are identical" in fault] == [
        f"{place}:2",
        f"{place}:4",
    ]
    assert any(fault.startswith(f"{place}:3: `layer`: ") for fault in faults)


def test_content_is_the_first_tag_of_the_preferred_kind() -> None:
    assert content_of("<query>a</query> <answer> b </answer> <answer>c</answer>") == "b"
    assert content_of("<evidence>x\ny</evidence>") == "x\ny"
    assert content_of("<query>open") == ""


def test_imported_pairs_can_be_stored_in_the_pairs_table() -> None:
    from branchwise.storage.schemas import PAIRS, rows_to_table, table_to_records

    pair = from_proguide(to_proguide(a_pair()))
    assert table_to_records(rows_to_table([pair], PAIRS, "r"), Pair) == [pair]
