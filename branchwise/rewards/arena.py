"""ARENA's reward: format, accuracy, relevance, and a bonus for all three (section 3.3).

The paper requires three sections in order. The other format rules are ours: each prevents an
incomplete reply from earning reward.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from branchwise.agent import (
    SECTIONS,
    AgentProtocol,
    Segment,
    State,
    outside,
    policy_text,
    section,
    supporting_numbers,
)
from branchwise.types import Question

from .answers import exact_match, f1
from .outcome import Outcome, Verdicts
from .outcome_scheme import OutcomeScheme
from .scheme import register_reward
from .settings import SchemeSettings

ArenaComponent = Literal["format", "accuracy", "relevance", "bonus"]
ArenaRule = Literal["sections", "outside", "list", "range", "blank", "cut"]
"""Rules of the format: three sections in order; nothing around them; a list of numbers; numbers of
references that were shown; an analysis and an answer; no cut at the token limit.
"""


class ArenaSettings(SchemeSettings):
    """ARENA's reward (section 3.3).

    Attributes:
        components: Components that the total adds up (all of weight 1); Naive-GRPO is `format` and
            `accuracy`, table 10 is without `bonus`.
        accuracy: Accuracy reward: `em`, or figure 3's `f1`. Figure 3's judge (LJ) is left out.
        partial_relevance: Relevance reward if some but not all cited references are right.
        bonus: Bonus reward if format, accuracy and relevance are 1.
    """

    scheme: Literal["arena"] = "arena"
    components: tuple[ArenaComponent, ...] = Field(
        default=("format", "accuracy", "relevance", "bonus"), min_length=1
    )
    accuracy: Literal["em", "f1"] = "em"
    partial_relevance: float = Field(default=0.5, ge=0, lt=1)
    bonus: float = Field(default=10.0, ge=0)


def arena_outcome(
    segments: Sequence[Segment],
    golds: Sequence[str],
    settings: ArenaSettings,
    *,
    reference_count: int,
    supporting: Collection[int] | None,
) -> tuple[Outcome, Verdicts]:
    """Computes the reward of one reply, and the verdicts of the rules on it.

    Components do not depend on each other, except the bonus. The total leaves out a relevance of
    None, which means that no supporting reference is known or shown.

    Args:
        segments: Segments of the rollout.
        golds: Gold answers; the best counts.
        settings: Reward settings.
        reference_count: Number of references in the prompt.
        supporting: Numbers of the supporting references among them, from 1; None if unknown.
    """
    text = policy_text(segments)
    answer = (section(text, "answer") or "").strip()
    em = exact_match(answer, golds, settings.form) if answer else 0.0
    accuracy = f1(answer, golds, settings.form) if answer and settings.accuracy == "f1" else em
    cited = _cited_numbers(section(text, "relevance"))
    relevance = _relevance(cited, supporting, settings.partial_relevance)
    failures = tuple(_broken_rules(text, cited, reference_count))
    if any(segment.cut for segment in segments):
        failures = (*failures, "cut")
    format_and_relevance_ok = not failures and relevance == 1.0
    parts: dict[ArenaComponent, float | None] = {
        "format": float(not failures),
        "accuracy": accuracy,
        "relevance": relevance,
        "bonus": settings.bonus if format_and_relevance_ok and accuracy == 1.0 else 0.0,
    }
    components: dict[str, float | None] = {name: parts[name] for name in settings.components}
    return Outcome(sum(value or 0.0 for value in components.values()), components), Verdicts(
        not failures,
        failures,
        relevance=relevance,
        relevance_full=None if relevance is None else relevance == 1.0,
        all_correct=None if relevance is None else format_and_relevance_ok and em == 1.0,
    )


def _broken_rules(
    text: str, cited: frozenset[int] | None, reference_count: int
) -> Iterator[ArenaRule]:
    around = outside(text, SECTIONS)
    if around is None:
        yield "sections"
    elif around.strip():
        yield "outside"
    if cited is None:
        if section(text, "relevance") is not None:
            yield "list"
    elif not all(1 <= number <= reference_count for number in cited):
        yield "range"
    contents = (section(text, name) for name in ("analysis", "answer"))
    if any(content is not None and not content.strip() for content in contents):
        yield "blank"


def _cited_numbers(content: str | None) -> frozenset[int] | None:
    """Parses "[2, 4]"; None for any other text. A number has one to six ASCII digits."""
    plain = (content or "").strip()
    if not (plain.startswith("[") and plain.endswith("]")):
        return None
    inside = plain[1:-1].strip()
    numbers = [number.strip() for number in inside.split(",")] if inside else []
    # isdigit alone also accepts full-width digits and superscripts.
    if not all(n.isascii() and n.isdigit() and len(n) <= 6 for n in numbers):
        return None
    return frozenset(map(int, numbers))


def _relevance(
    cited: frozenset[int] | None, supporting: Collection[int] | None, partial: float
) -> float | None:
    if not supporting:
        return None
    if cited is None or not cited & frozenset(supporting):
        return 0.0
    return 1.0 if cited == frozenset(supporting) else partial


@register_reward
class ArenaRewards(OutcomeScheme):
    """ARENA's adaptive reward of one reply."""

    name = "arena"
    title = "ARENA"
    protocols = ("arena",)
    settings_class = ArenaSettings

    @classmethod
    def score(
        cls, question: Question, protocol: AgentProtocol, state: State, settings: Any
    ) -> tuple[Outcome, Verdicts]:
        return arena_outcome(
            protocol.segments(state),
            question.answers,
            settings,
            reference_count=len(state.given or ()),
            supporting=supporting_numbers(question, state),
        )
