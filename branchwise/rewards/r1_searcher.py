"""R1-Searcher's rewards: retrieval and format in stage 1, answer and format in stage 2.

Source: R1-Searcher section 2.2, eq. 1 to 5. The paper requires a short answer and readable text;
the limits are ours.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from branchwise.agent import (
    R1_SEARCHER,
    AgentProtocol,
    Segment,
    State,
    find_tags,
    is_block,
    outside,
    policy_text,
    section,
)
from branchwise.types import Question

from .answers import cover_em, exact_match, f1
from .outcome import Outcome, Verdicts
from .outcome_scheme import OutcomeScheme
from .scheme import register_reward
from .settings import SchemeSettings

R1Rule = Literal[
    "sections", "outside", "answer", "long-answer", "documents", "query", "ending", "unreadable"
]
"""Rules of the format: reasoning and answer once each, in this order; nothing around them; an
answer that is short, not blank and without a tag; no document tag; one query in each policy
segment before documents and none in others; an end by `</answer>`; readable characters.
"""


class R1SearcherSettings(SchemeSettings):
    """R1-Searcher's rewards (section 2.2).

    Attributes:
        stage: 1 pays retrieval and format (eq. 1 and 2), 2 pays answer and format (eq. 3).
        retrieval: Stage 1, R_retrieval if at least one search was served.
        format: Stage 1, R_format if the format is correct.
        format_failure: Stage 2, R'_format if the format is not correct.
        answer_reward: Stage 2, R_answer: `f1` (eq. 4), or `em` or `cover_em` (eq. 5), which pay 1
            for a right answer and −1 for any other.
        max_answer_words: Most words of an answer, unless a gold is longer. The paper lacks a
            number; 10 is from descendants of the published code.
    """

    scheme: Literal["r1-searcher"] = "r1-searcher"
    stage: Literal[1, 2] = 1
    retrieval: float = Field(default=0.5, ge=0)
    format: float = Field(default=0.5, ge=0)
    format_failure: float = Field(default=-2.0, le=0)
    answer_reward: Literal["f1", "em", "cover_em"] = "f1"
    max_answer_words: int = Field(default=10, ge=1)


def r1_searcher_outcome(
    segments: Sequence[Segment], question: str, golds: Sequence[str], settings: R1SearcherSettings
) -> tuple[Outcome, Verdicts]:
    """Computes the reward of one rollout, and the verdicts of the rules on it.

    Stage 2 rewards the answer even if the format is wrong. A component that the stage does not pay
    is None.

    Args:
        segments: Segments of the rollout, the prefill included.
        question: Text of the question; its ideographs are readable.
        golds: Gold answers; the best counts.
        settings: Reward settings.
    """
    answer = (section(policy_text(segments), "answer") or "").strip() or None
    failures = tuple(_broken_rules(segments, question, golds, settings.max_answer_words))
    blocks = len(_blocks(segments))
    components: dict[str, float | None] = (
        {
            "retrieval": settings.retrieval if blocks else 0.0,
            "format": 0.0 if failures else settings.format,
            "answer": None,
        }
        if settings.stage == 1
        else {
            "retrieval": None,
            "format": settings.format_failure if failures else 0.0,
            "answer": _answer_reward(answer, golds, settings),
        }
    )
    outcome = Outcome(sum(value or 0.0 for value in components.values()), components)
    return outcome, Verdicts(not failures, failures, retrievals=blocks)


def _answer_reward(answer: str | None, golds: Sequence[str], settings: R1SearcherSettings) -> float:
    if settings.answer_reward == "f1":
        return 0.0 if answer is None else f1(answer, golds, settings.form)
    is_right = exact_match if settings.answer_reward == "em" else cover_em
    return 1.0 if answer is not None and is_right(answer, golds, settings.form) else -1.0


def _blocks(segments: Sequence[Segment]) -> list[str]:
    opening = R1_SEARCHER["documents"][0]
    return [segment.text for segment in segments if is_block(segment, opening)]


def _broken_rules(
    segments: Sequence[Segment], question: str, golds: Sequence[str], max_words: int
) -> Iterator[R1Rule]:
    text = policy_text(segments)
    around = outside(policy_text(segments, prefill=True), ("think", "answer"))
    if around is None:
        yield "sections"
    elif around.strip():
        yield "outside"
    answer = section(text, "answer")
    if answer is not None:
        if not answer.strip() or any(find_tags(answer, R1_SEARCHER)):
            yield "answer"
        if len(answer.split()) > max(max_words, *(len(gold.split()) for gold in golds), 0):
            yield "long-answer"
    if any(tag.name == "documents" for tag in find_tags(text, R1_SEARCHER)):
        yield "documents"
    if not _has_one_query_per_search(segments):
        yield "query"
    last = segments[-1] if segments else Segment("policy", "")
    is_cut = any(segment.cut for segment in segments)
    if is_cut or last.role != "policy" or not last.text.rstrip().endswith("</answer>"):
        yield "ending"
    if not _is_readable(text, set(question).union(*_blocks(segments))):
        yield "unreadable"


def _has_one_query_per_search(segments: Sequence[Segment]) -> bool:
    """Returns whether each policy segment before documents has exactly one query, others none."""
    opening = R1_SEARCHER["documents"][0]
    for place, segment in enumerate(segments):
        if segment.role == "environment":
            continue
        served = any(is_block(after, opening) for after in segments[place + 1 : place + 2])
        queries = [
            tag.closing for tag in find_tags(segment.text, R1_SEARCHER) if tag.name == "query"
        ]
        if queries != ([False, True] if served else []):
            return False
    return True


def _is_readable(text: str, shown: set[str]) -> bool:
    """Returns whether no character is garbled. Nonsense in Latin letters is not detected.

    Args:
        text: Text of the policy.
        shown: Characters of the question and the documents; other CJK ideographs count as garbled.
    """
    return not any(
        character == "\ufffd"
        or (
            unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")
            and character not in "\t\n\r"
        )
        or ("\u4e00" <= character <= "\u9fff" and character not in shown)
        for character in set(text)
    )


@register_reward
class R1SearcherRewards(OutcomeScheme):
    """R1-Searcher's rewards of stage 1 or 2."""

    name = "r1-searcher"
    title = "R1-Searcher"
    protocols = ("r1-searcher",)
    settings_class = R1SearcherSettings

    @classmethod
    def score(
        cls, question: Question, protocol: AgentProtocol, state: State, settings: Any
    ) -> tuple[Outcome, Verdicts]:
        segments = protocol.segments(state)
        return r1_searcher_outcome(segments, question.question, question.answers, settings)
