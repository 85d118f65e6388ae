"""Which questions can be answered without looking anything up."""

from collections.abc import Iterable

from rewards.answers import cover_em, normalise

YES_NO = frozenset({"yes", "no"})


def guessable(question: str, answers: Iterable[str]) -> bool:
    """Returns whether a gold answer is yes or no, or is in the question itself.

    "Who is older, Ada Lovelace or Mary Shelley?" leaves two answers to choose from. A gold stands
    in the question if its normalised tokens do, side by side and in order. Such questions tell
    little of search, so tables show them apart.

    Args:
        question: Text of the question.
        answers: all golds; one that can be guessed is enough.
    """
    golds = tuple(answers)
    return any(normalise(gold) in YES_NO for gold in golds) or cover_em(question, golds) == 1.0
