"""Assigns questions to splits by hash, so that every machine draws the same ones."""

from collections import defaultdict
from collections.abc import Iterable

from branchwise.base import comparable, number_of
from branchwise.types import Question

from .settings import Split

SHARES: dict[Split, int] = {"warm": 30, "train": 25, "dev": 15, "test": 30}
"""Percentage of the keys per split."""


def hashed(*parts: object) -> int:
    """Returns a 64-bit number that depends only on `parts`, for seeds and choices."""
    return number_of("\x1f".join(map(str, parts)))


def split_of(key: str) -> Split:
    """Returns the split of a key (see `SHARES`)."""
    place = hashed("part", key) % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("shares add up to 100")


def repeated_questions(questions: Iterable[Question], past: Iterable[Question]) -> list[Question]:
    """Returns those of `questions` that are also in `past`, by id or by text.

    Ids of `jsonl`, `hub` and `flashrag` do not count, because each file may number its questions
    from 1. Sets of `reading` ask the same about many passages ("Where was it built?"). Two of their
    questions with the same text are different questions if their passages differ.
    """
    ids: set[tuple[str, str]] = set()
    passages: dict[str, set[str | None]] = defaultdict(set)
    for question in past:
        if question.source not in {"jsonl", "hub", "flashrag"}:
            ids.add((question.source, question.id))
        passages[comparable(question.question)].add(_passage(question))

    def is_known(question: Question) -> bool:
        same_text = passages.get(comparable(question.question), set())
        passage = _passage(question)
        return (question.source, question.id) in ids or bool(
            same_text & {passage, None} if passage else same_text
        )

    return [question for question in questions if is_known(question)]


def _passage(question: Question) -> str | None:
    """Returns the passage that a question of `reading` is about; None for other sources."""
    is_about_passage = question.source == "reading" and question.paragraphs
    return question.paragraphs[0].text if is_about_passage else None
