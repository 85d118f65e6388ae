"""The ARENA protocol: one call that cites references, analyses them and answers.

Source: ARENA section 3.2 (prompt in our own words). The references come with the question, or a
search with the question finds them (`agent.references`). An answer is read even if the reply's
format is wrong, because accuracy and format are separate rewards (`rewards.arena`).
"""

from typing import Literal

from branchwise.types import Message, Question, RetrievedPassage

from .protocol import AgentProtocol, register_protocol
from .segments import section
from .settings import OneCallSettings
from .state import Action, State
from .tags import without_tags

SECTIONS = ("relevance", "analysis", "answer")
"""Sections of a reply, in this order."""


class ArenaAgentSettings(OneCallSettings):
    """ARENA's protocol.

    Attributes:
        references: References: the paragraphs `given` with the question (the paper), or passages
            `retrieved` with the question as query.
    """

    protocol: Literal["arena"] = "arena"
    references: Literal["given", "retrieved"] = "given"


@register_protocol
class Arena(AgentProtocol):
    """ARENA's protocol (see module)."""

    name = "arena"
    settings_class = ArenaAgentSettings
    settings: ArenaAgentSettings
    forces_answer = False

    def unfit(self, question: Question) -> str | None:
        if self.settings.references == "given" and not _paragraphs(question):
            return "without paragraphs (agent.references: given)"
        return super().unfit(question)

    def given(self, question: Question) -> tuple[RetrievedPassage, ...]:
        return _paragraphs(question)

    def first_query(self, question: Question) -> str | None:
        return question.question if self.settings.references == "retrieved" else None

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        lines = [f"Question: {state.question}", "References:"]
        for number, passage in enumerate(state.given or (), start=1):
            lines.append(f"[{number}] {without_tags(passage.title)}: {without_tags(passage.text)}")
        return (
            Message("system", self.prompts["system"]),
            Message("user", "\n".join(lines if state.given else [*lines, "(none)"])),
        )

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        answer = (section(text, "answer") or "").strip()
        if not answer:
            return Action.invalid("no <answer> section that can be read")
        sections = ((name, section(text, name)) for name in SECTIONS[:-1])
        parts = tuple((name, content.strip()) for name, content in sections if content is not None)
        return Action("answer", answer, parts=parts)

    def read(self, state: State, text: str, *, last: bool, cut: bool) -> Action:
        """Also reads a truncated reply: an answer before the cut counts."""
        return self.parse(state, text, last=last)


def _paragraphs(question: Question) -> tuple[RetrievedPassage, ...]:
    """Returns the question's paragraphs, in the source's order."""
    return tuple(
        RetrievedPassage(
            id=paragraph.id or f"{question.id}#{number}",
            title=paragraph.title,
            text=paragraph.text,
            score=0.0,
        )
        for number, paragraph in enumerate(question.paragraphs)
        if paragraph.text.strip()
    )


def supporting_numbers(question: Question, state: State) -> frozenset[int] | None:
    """Returns the numbers of the supporting references among those shown, from 1.

    None if the question does not mark the paragraphs or passages that support the answer.
    """
    supporting = {
        paragraph.id or f"{question.id}#{number}"
        for number, paragraph in enumerate(question.paragraphs)
        if paragraph.is_supporting
    }
    supporting |= set(question.supporting_ids)
    if not supporting:
        return None
    shown = enumerate(state.given or (), start=1)
    return frozenset(number for number, passage in shown if passage.id in supporting)
