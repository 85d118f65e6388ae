"""Finds questions that can be answered without a search."""

from collections.abc import Iterable

from rewards.answers import cover_em, normalise

YES_NO = frozenset({"yes", "no"})


def guessable(question: str, answers: Iterable[str]) -> bool:
    """Returns whether a gold answer is yes or no, or is in the question itself.

    "Who is older, Ada Lovelace or Mary Shelley?" leaves two answers to choose from. A question
    contains a gold if it has the gold's normalised tokens, side by side and in order. Such
    questions do not measure search well, so tables list them separately.

    Args:
        question: Text of the question.
        answers: All golds; one that can be guessed is enough.
    """
    golds = tuple(answers)
    return any(normalise(gold) in YES_NO for gold in golds) or cover_em(question, golds) == 1.0
