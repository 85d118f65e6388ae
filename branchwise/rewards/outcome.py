"""Scores of a finished trajectory (answer, rules of its protocol, reward scheme), and labels.

A label is the reward of a node, computed from the outcomes at or below it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from branchwise.types import Component, Question

from .answers import cover_em, exact_match, f1


class AnswerScores(NamedTuple):
    """Scores of one answer, each in [0, 1]; None if it was not scored."""

    em: float | None = None
    f1: float | None = None
    cover_em: float | None = None

    @classmethod
    def of(cls, answer: str | None, golds: Sequence[str]) -> "AnswerScores":
        """Scores an answer against the gold answers; all None for a missing answer."""
        if answer is None:
            return cls()
        return cls(exact_match(answer, golds), f1(answer, golds), cover_em(answer, golds))

    @classmethod
    def in_benchmark(cls, answer: str | None, question: Question) -> "AnswerScores":
        """Scores an answer as benchmarks do: 0 if missing, None for unanswerable questions.

        A blank answer is a missing one: otherwise it would equal golds without letters or digits
        (NQ has some, such as ")"), whose normal form is empty.
        """
        if not question.answerable:
            return cls()
        if answer is None or not answer.strip():
            return cls(0.0, 0.0, 0.0)
        return cls.of(answer, question.answers)


class Verdicts(NamedTuple):
    """Verdicts of a protocol's rules on a finished trajectory; None if they do not apply.

    Attributes:
        format_ok: Whether the format is correct; True if the rules are only about other things.
        format_failures: Rules of the format that it breaks.
        relevance: 1 if exactly the supporting references are cited, 0.5 if some are, else 0.
        relevance_full: Whether relevance is 1.
        all_correct: Whether format, exact match and relevance are 1.
        retrievals: Blocks of passages that the environment inserted.
        corrections: Invalid actions that were answered with a corrective message.
        evaluated: Share of the retrievals that the policy evaluated.
        copied: Mean share of an evaluation that is copied from the passages; None without any.
        forged: Opening document tags that the policy wrote itself.
        turn_tokens: Tokens of the whole conversation: prompt, samples and insertions.
    """

    format_ok: bool = True
    format_failures: tuple[str, ...] | None = None
    relevance: float | None = None
    relevance_full: bool | None = None
    all_correct: bool | None = None
    retrievals: int | None = None
    corrections: int | None = None
    evaluated: float | None = None
    copied: float | None = None
    forged: int | None = None
    turn_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Value of a finished trajectory under a reward scheme.

    Attributes:
        total: Reward of the whole trajectory; None if the scheme lacks one.
        components: Named parts of the total; None for an unknown one.
    """

    total: float | None
    components: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Label:
    """A node's reward, or None; and the number of distinct outcomes that it is computed from.

    Attributes:
        reward: SPRE: in [0, 1]. EVO-RAG: a weighted return, of any sign.
        components: Named parts that are stored with the node and its pairs.
        weighted: Parts of a `reward` that is a sum; it leaves out None parts.
    """

    reward: float | None
    n_outcomes: int
    components: tuple[Component, ...] = ()
    weighted: Mapping[str, float | None] = field(default_factory=dict)


def gap(label: Label, sibling: Label) -> float:
    """Returns how much higher `label` is rewarded than `sibling`; both have a reward.

    Leaves a part out of both sums if it is None for either side, because an unknown value is not a
    reason to prefer the other side.
    """
    if label.reward is None or sibling.reward is None:
        raise ValueError("cannot compare a label without a reward")
    if not label.weighted:
        return label.reward - sibling.reward
    return sum(
        part - sibling_part
        for name, part in label.weighted.items()
        if part is not None and (sibling_part := sibling.weighted.get(name)) is not None
    )


def is_wide_enough(difference: float, least: float) -> bool:
    """Returns whether a gap of either sign is at least `least`, except for rounding errors.

    In floating point 0.3 − 0.1 is below 0.2, and judge scores are stored with 32 bits. So the
    tolerance is a hundred-thousandth of `least`.
    """
    return abs(difference) >= least or math.isclose(abs(difference), least, rel_tol=1e-5)
