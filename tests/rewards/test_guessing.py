"""Questions whose answer can be guessed from their text."""

import pytest

from rewards.guessable import guessable


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
