"""Gold passages: marked ids, otherwise titles with the answer, otherwise all of that title."""

from typing import Any

import pytest

from branchwise.sources.gold import resolve_gold
from branchwise.types import Paragraph, Passage, Question

CORPUS = [
    Passage(id="a", title="Island", text="A film by Kim."),
    Passage(id="b", title="Island", text="A film by Bay."),
    Passage(id="n", title="North", text="The north of Italian lands."),
    Passage(id="m", title="North", text="Yes, a band of Ian Bay."),
    Passage(id="c", title="Bay", text="Bay was born in Los Angeles."),
    Passage(id="docs/the_bay.md#0", title="Harbours", text="Ships."),
    Passage(id="docs/the_bay.md#1", title="Harbours", text="Michael Bay."),
]


def gold(**fields: Any) -> tuple[str, ...]:
    return resolved(CORPUS, **fields).supporting_ids


def resolved(corpus: list[Passage], **fields: Any) -> Question:
    values = {"id": "q", "source": "s", "question": "?", "answers": ("Bay",), **fields}
    return resolve_gold([Question.model_validate(values)], corpus, {"old": "c"})[0]


def test_marked_paragraphs_take_precedence_over_titles() -> None:
    marked = Paragraph(title="Island", text="", is_supporting=True, id="a")
    other = Paragraph(title="Bay", text="", id="c")
    assert gold(paragraphs=(marked, other), supporting_titles=("Bay",)) == ("a",)


def test_of_passages_with_the_same_title_those_with_the_answer_are_gold() -> None:
    assert gold(supporting_titles=("Island",)) == ("b",)
    assert gold(supporting_titles=("Island",), answers=("nobody",)) == ("a", "b")


def test_answers_match_whole_words_and_yes_or_no_selects_no_passage() -> None:
    assert gold(supporting_titles=("North",), answers=("Ian",)) == ("m",)
    assert gold(supporting_titles=("North",), answers=("no",)) == ("n", "m")
    assert gold(supporting_titles=("North",), answers=("yes",)) == ("n", "m")
    assert gold(supporting_titles=("North",), answers=("Yes",)) == ("n", "m")


def test_aliases_resolve_to_the_kept_passage_and_missing_ids_are_dropped() -> None:
    assert gold(supporting_ids=("old", "gone")) == ("c",)
    assert gold(supporting_ids=("gone",), supporting_titles=("Bay",)) == ("c",)


@pytest.mark.parametrize(
    ("title", "answer", "spelled", "ids"),
    [
        ("_bay", "nobody", ("Bay",), ("c",)),
        ("ISLAND", "Kim", ("Island",), ("a",)),
        ("The bay", "Bay", ("Harbours",), ("docs/the_bay.md#1",)),
        ("the_bay.md", "nobody", ("Harbours",), ("docs/the_bay.md#0", "docs/the_bay.md#1")),
        ("docs/the_bay.md", "Bay", ("Harbours",), ("docs/the_bay.md#1",)),
        ("Bays", "Bay", ("Bays",), ()),
    ],
)
def test_a_title_is_found_in_another_spelling_or_as_a_path_or_file_name(
    title: str, answer: str, spelled: tuple[str, ...], ids: tuple[str, ...]
) -> None:
    found = resolved(CORPUS, answers=(answer,), supporting_titles=(title,))
    assert (found.supporting_titles, found.supporting_ids) == (spelled, ids)


def test_a_path_singles_out_a_document_among_those_of_its_title() -> None:
    paths = ("docs/leave/index.md", "docs/travel/index.md")
    corpus = [Passage(id=path, title="Overview", text="text") for path in paths]
    found = resolved(corpus, supporting_titles=("leave/index.md",))
    assert (found.supporting_titles, found.supporting_ids) == (("Overview",), paths[:1])


def test_an_exact_title_is_preferred_to_another_spelling() -> None:
    corpus = [Passage(id=name, title=name, text="x") for name in ("us", "US")]
    assert resolved(corpus, supporting_titles=("US",)).supporting_ids == ("US",)


def test_questions_without_a_known_title_have_no_gold() -> None:
    assert gold() == ()
    assert gold(supporting_titles=("Nowhere",)) == ()
