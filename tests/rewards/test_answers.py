"""Answer metrics: worked examples, the rules of SQuAD and HotpotQA, and properties."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import a_question

from branchwise.rewards.answers import (
    contains,
    cover_em,
    exact_match,
    f1,
    guessable,
    is_ambiguous,
    normalise,
    strict_form,
    supporting_recall,
)
from branchwise.rewards.outcome import AnswerScores

TEXT = st.text(alphabet="aAnthe ,.-_'!0123ßéİ\t\n", max_size=24)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("a.n. Other", "other"),  # punctuation goes first, as in SQuAD: "a.n." becomes "an"
        ("U.S. Route 66", "us route 66"),
        ("New_York", "new york"),
        ("Thea and Anna", "thea and anna"),  # articles are whole words
        ("state-of-the-art", "stateoftheart"),
        ("$1,000.50", "100050"),
        ("Zürich", "zürich"),
        ("“quoted”", "“quoted”"),  # only ASCII punctuation, as published
        ("the a an", ""),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "score"),
    [
        # SQuAD's own example question: Super Bowl 50.
        ("the Denver Broncos", ["Denver Broncos"], 1, 1.0),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),
        ("the city of Santa Clara, California", ["Santa Clara", "Levi's Stadium"], 0, 4 / 7),
        # The best gold counts, not the first and not the union.
        ("Stadium", ["Santa Clara", "Levi's Stadium"], 0, 2 / 3),
        # Multisets: the second "new" of the prediction has no match.
        ("new new york", ["new york"], 0, 0.8),
        ("york york", ["new york"], 0, 0.5),
        # HotpotQA: yes/no shares nothing with a longer answer, in either direction.
        ("yes", ["yes"], 1, 1.0),
        ("yes it is", ["yes"], 0, 0.0),
        ("no", ["no one"], 0, 0.0),
        ("noanswer", ["noanswer given"], 0, 0.0),
        ("The yes.", ["Yes"], 1, 1.0),
        # SQuAD 2.0: if either side has no tokens, the score is 1 if both are equal, else 0.
        ("", ["Paris"], 0, 0.0),
        ("the", ["Paris"], 0, 0.0),
        ("an", ["A"], 1, 1.0),
        ("Paris", [], 0, 0.0),
        ("J. K. Rowling", ["JK Rowling"], 0, 0.4),
    ],
)
def test_em_and_f1(prediction: str, golds: list[str], em: float, score: float) -> None:
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(score)


def test_f1_can_keep_articles() -> None:
    assert f1("the cat", ["cat"]) == 1.0
    keeping = partial(normalise, keep_articles=True)
    assert f1("the cat", ["cat"], keeping) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("prediction", "golds", "covered"),
    [
        ("It was the Denver Broncos, in 2016", ["Denver Broncos"], 1),
        ("Denver and the Broncos", ["Denver Broncos"], 0),  # not adjacent
        ("Broncos Denver", ["Denver Broncos"], 0),  # not in order
        ("Romania", ["Oman"], 0),  # tokens, not characters
        ("Yes.", ["yes"], 1),
        ("no, it is not", ["no"], 0),
        ("anything", ["the", "!"], 0),
        ("Denver", ["Denver Broncos"], 0),
    ],
)
def test_cover_em(prediction: str, golds: list[str], covered: float) -> None:
    assert cover_em(prediction, golds) == covered


def test_supporting_recall() -> None:
    assert supporting_recall(["p1", "p9", "p1"], ["p1", "p2"]) == 0.5
    assert supporting_recall([], ["p1"]) == 0.0
    assert supporting_recall(["p1"], []) is None


@given(TEXT, st.lists(TEXT, max_size=4), st.booleans())
def test_an_exact_match_implies_f1_and_cover_em_of_1(
    prediction: str, golds: list[str], keep: bool
) -> None:
    for form in (normalise, strict_form):
        score = f1(prediction, golds, partial(form, keep_articles=keep))
        assert 0.0 <= score <= 1.0
        if exact_match(prediction, golds, form):
            assert f1(prediction, golds, form) == 1.0
            assert cover_em(prediction, golds, form) == 1.0


@given(TEXT, TEXT)
def test_f1_and_em_are_symmetric_and_normalise_is_idempotent(left: str, right: str) -> None:
    assert f1(left, [right]) == pytest.approx(f1(right, [left]))
    assert exact_match(left, [right]) == exact_match(right, [left])
    assert normalise(normalise(left, keep_articles=True), keep_articles=True) == normalise(
        left, keep_articles=True
    )


@pytest.mark.parametrize(
    ("text", "golds", "found"),
    [
        ("He died on April 22, 1894.", ["22 April 1894", "April 22 1894"], True),
        ("It was a party.", ["art"], False),
        ("New: it lies in York.", ["New York"], False),
        ("the Bank of the West", ["bank of west"], True),
        ("yes", ["yes"], False),  # cover-EM counts these two
        ("The The", ["The The"], False),
        ("There is no answer.", ["no", "noanswer"], False),
        ("São Tomé", ["Sao Tome"], False),
        ("Paris", [], False),
    ],
)
def test_contains(text: str, golds: list[str], found: bool) -> None:
    assert contains(text, golds) is found


@given(TEXT, st.lists(TEXT, max_size=3))
def test_cover_em_is_em_or_contains(prediction: str, golds: list[str]) -> None:
    expected = exact_match(prediction, golds) == 1.0 or contains(prediction, golds)
    assert cover_em(prediction, iter(golds)) == expected


def test_a_blank_answer_is_wrong_even_if_the_gold_has_no_token() -> None:
    question = a_question(answers=(")",))
    assert AnswerScores.in_benchmark(" ", question) == (0, 0, 0)
    assert AnswerScores.in_benchmark(")", question) == (1, 1, 1)


@pytest.mark.parametrize(
    ("question", "answers", "given_away"),
    [
        ("Is Oslo larger than Bergen?", ("Yes",), True),
        ("Who is older, Ada Lovelace or Mary Shelley?", ("Mary Shelley",), True),
        ("Who is older, Ada Lovelace or Mary Shelley?", ("Shelley", "Mary Shelley!"), True),
        ("Who is older, Mary Ann Shelley or Ada?", ("Mary Shelley",), False),
        ("Which shell is larger, nautilus or conch?", ("hell",), False),
        ("Where was Ada Lovelace born?", ("London",), False),
        ("Where was The The founded?", ("The",), False),
        ("Who was the noanswer of no?", ("noanswer",), False),
        ("What is unknown?", (), False),
    ],
)  # fmt: skip
def test_guessable_questions_contain_their_answer_or_ask_yes_or_no(
    question: str, answers: tuple[str, ...], given_away: bool
) -> None:
    assert guessable(question, answers) is given_away


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("U.S.", "US"), ("1,000", "1000"), ("twenty-one", "twenty one"), ("St. Paul", "St Paul"),
        ("1939–1945", "1939-1945"), ("1939 - 1945", "1939-1945"), ("early - life", "early-life"),
        ("−5", "-5"), ("O’Neill", "O'Neill"), ("“Heroes”", '"Heroes"'), ("ﬁsh", "fish"),
        ("Mu\u0308ller", "Müller"), ("New_York", "new york"), ("AC / DC", "AC/DC"),
        ("Washington, D.C.", "Washington DC"), ("(Paris)", "Paris"), ("**Paris**", "Paris"),
        ("The Beatles.", "beatles"), ("3.14.", "3.14"), ("Straße", "STRASSE"), ("½", "1/2"),
        ("10²", "10^2"), ("Paris, France", "Paris – France"), ("`C#`", "c#"), ("a", "A"),
        ("+372", "372"), ("5 %", "5%"), ("$ 5", "$5"), ("1,00,000", "100000"), ("H₂O", "H2O"),
        ("1⁄2", "1/2"), ('"1984"', "1984"), ("Paris\u200e", "Paris"),
        ("rock 'n' roll", "rock n roll"),
    ],
)  # fmt: skip
def test_the_strict_form_of_one_answer_is_the_same_however_it_is_written(
    left: str, right: str
) -> None:
    assert strict_form(left) == strict_form(right)
    assert exact_match(left, [right], strict_form) == 1.0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("3.14", "314"), ("3,14", "314"), ("C#", "C"), ("C++", "C"), ("A*", "A"), ("f(x)", "fx"),
        ("-5", "5"), ("A+", "A"), ("-0.5", "0.5"), (".5", "5"), ("5%", "5"), ("$5", "5"),
        ("1/2", "12"), ("10:30", "1030"), ("1939-1945", "19391945"), ("2-1", "21"), ("10", "1.0"),
        ("Vitamin A", "Vitamin"), ("AC/DC", "ACDC"), ("10²", "102"), ("H₂O", "HO"), ("?", ")"),
        ("5'", '5"'), ("5'10\"", "510"), ("A-", "A"), ("a != b", "a = b"), ("x := 1", "x = 1"),
        ("-v", "v"), (".NET", "NET"), ("2*3*4", "234"), ("a = b", "= b"),
        ("A", "The The"), ("x < y", "x > y"),
    ],
)  # fmt: skip
def test_the_strict_forms_of_different_answers_differ(left: str, right: str) -> None:
    assert strict_form(left) != strict_form(right)
    assert exact_match(left, [right], strict_form) == 0.0


@given(TEXT)
def test_the_strict_form_is_never_empty_and_holds_no_outer_blanks(text: str) -> None:
    form = strict_form(text)
    assert form == " ".join(form.split())
    assert bool(form) == bool(text.strip())


def test_answers_that_squads_form_takes_for_others_are_known() -> None:
    ambiguous = ["3.14", "C#", "Vitamin A", "2-1", "AC/DC", "?", "50%"]
    plain = ["Paris", "U.S.", "Spider-Man", "1,000", "The Beatles", "O'Neill", "10 May 1990"]
    assert [answer for answer in (*ambiguous, *plain) if is_ambiguous(answer)] == ambiguous
