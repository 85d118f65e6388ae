"""Scores of a finished trajectory's answer: exact match, F1 and cover-EM, computed in one place."""

from collections.abc import Sequence
from typing import NamedTuple

from rewards.answers import cover_em, exact_match, f1
from storage.records import Question


class AnswerScores(NamedTuple):
    """Scores of one answer, each in [0, 1]; None if nothing was scored."""

    em: float | None = None
    f1: float | None = None
    cover_em: float | None = None

    @classmethod
    def of(cls, answer: str | None, golds: Sequence[str]) -> "AnswerScores":
        """Scores an answer against the gold answers; no answer has no scores."""
        if answer is None:
            return cls()
        return cls(exact_match(answer, golds), f1(answer, golds), cover_em(answer, golds))

    @classmethod
    def in_benchmark(cls, answer: str | None, question: Question) -> "AnswerScores":
        """Scores an answer as benchmarks do: none is 0, unanswerable questions have no scores."""
        if not question.answerable:
            return cls()
        return cls(0.0, 0.0, 0.0) if answer is None else cls.of(answer, question.answers)
