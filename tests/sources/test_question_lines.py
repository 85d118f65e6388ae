"""Round trip of questions through lines of JSONL."""

import json

from hypothesis import given
from hypothesis import strategies as st
from sample_records import a_question

from branchwise.base import comparable
from branchwise.sources.jsonl import QuestionLine, line_of
from branchwise.types import Paragraph

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(comparable)
"""Texts that are not blank: a soft hyphen alone, for example, is dropped from the answers."""


@given(
    question=words,
    answers=st.lists(words, max_size=3, unique=True),
    extra=st.dictionaries(st.sampled_from(["level", "split", "pid"]), words),
    hops=st.none() | st.integers(1, 9),
)
def test_a_question_round_trips_through_its_line(
    question: str, answers: list[str], extra: dict[str, str], hops: int | None
) -> None:
    written = a_question(
        source="jsonl",
        question=question,
        answers=tuple(answers),
        answerable=bool(answers),
        hops=hops,
        supporting_titles=("France",),
        supporting_ids=("p1",),
        paragraphs=(
            Paragraph(title="France", text="Its capital is Paris.", is_supporting=True, id="p1"),
            Paragraph(title="Peru", text="Its capital is Lima."),
        ),
        licence="MIT",
        extra={"source": "musique", **extra},
    )
    line = line_of(written)
    assert line.count("\n") == 1
    assert QuestionLine.parse(json.loads(line)).to_question("jsonl") == written


def test_numbers_are_read_as_ids_and_null_as_an_empty_list() -> None:
    line = {"id": 1, "question": "Who?", "answers": ["Ada"], "supporting_ids": [2],
            "supporting_titles": None, "paragraphs": None}  # fmt: skip
    read = QuestionLine.parse(line).to_question("jsonl")
    assert (read.id, read.supporting_ids) == ("1", ("2",))
    assert (read.supporting_titles, read.paragraphs) == ((), ())


def test_a_line_keeps_the_original_source() -> None:
    (line,) = line_of(a_question(source="2wiki", extra={"hops": "two"})).splitlines()
    read = QuestionLine.parse(json.loads(line)).to_question("jsonl")
    assert read.extra == {"source": "2wiki"}
    assert read.hops == 1, "an extra field never replaces a field of the question"
    assert json.loads(line_of(read))["source"] == "2wiki"
