"""Gold documents: marked ids, else titles that hold the answer, else all of that title."""

from sources.gold import resolve_gold
from storage.records import Paragraph, Passage, Question

CORPUS = [
    Passage(id="a", title="Island", text="A film by Kim."),
    Passage(id="b", title="Island", text="A film by Bay."),
    Passage(id="n", title="North", text="The north of Italian lands."),
    Passage(id="m", title="North", text="Yes, a band of Ian Bay."),
    Passage(id="c", title="Bay", text="Bay was born in Los Angeles."),
]


def gold(**fields: object) -> tuple[str, ...]:
    values = {"id": "q", "source": "s", "question": "?", "answers": ("Bay",), **fields}
    return resolve_gold([Question.model_validate(values)], CORPUS, {"old": "c"})[0].supporting_ids


def test_marked_paragraphs_come_first() -> None:
    marked = Paragraph(title="Island", text="", is_supporting=True, id="a")
    other = Paragraph(title="Bay", text="", id="c")
    assert gold(paragraphs=(marked, other), supporting_titles=("Bay",)) == ("a",)


def test_a_title_shared_by_several_passages_means_the_one_with_the_answer() -> None:
    assert gold(supporting_titles=("Island",)) == ("b",)
    assert gold(supporting_titles=("Island",), answers=("nobody",)) == ("a", "b")


def test_an_answer_is_held_as_whole_words_and_yes_or_no_proves_nothing() -> None:
    assert gold(supporting_titles=("North",), answers=("Ian",)) == ("m",)
    assert gold(supporting_titles=("North",), answers=("no",)) == ("n", "m")
    assert gold(supporting_titles=("North",), answers=("yes",)) == ("n", "m")


def test_aliases_lead_to_the_kept_passage_and_missing_ones_are_dropped() -> None:
    assert gold(supporting_ids=("old", "gone")) == ("c",)
    assert gold(supporting_ids=("gone",), supporting_titles=("Bay",)) == ("c",)


def test_unknown_stays_unknown() -> None:
    assert gold() == ()
    assert gold(supporting_titles=("Nowhere",)) == ()
