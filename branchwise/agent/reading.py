"""Reading: one turn, from the question (and passages, if some were found for it) to an answer.

This protocol is for baselines of a searching policy. The passages come from the root
(`State.given`). Three worked examples come first, because an untuned small model otherwise answers
in sentences, which exact match counts as wrong.
"""

from collections.abc import Iterator
from typing import Literal

from branchwise.engines import Structure
from branchwise.types import Message

from .protocol import AgentProtocol, register_protocol
from .settings import ConstrainedSettings, OneCallSettings
from .state import Action, State
from .tags import fenced, parse_tag, tag_structure


class ReadingAgentSettings(OneCallSettings, ConstrainedSettings):
    """One turn without a search."""

    protocol: Literal["reading"] = "reading"


@register_protocol
class Reading(AgentProtocol):
    """The single-turn protocol (see module)."""

    name = "reading"
    settings_class = ReadingAgentSettings
    forces_answer = False

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        closed = state.given is None
        shown = [fenced(p.title, p.text) for p in state.given or ()]
        if not closed and not shown:
            shown = ["(no passage found)"]
        return (
            Message("system", self.prompts["closed-book" if closed else "passages"]),
            *self._examples(closed=closed),
            Message("user", "\n".join([*shown, f"Question: {state.question}"])),
        )

    def _examples(self, *, closed: bool) -> Iterator[Message]:
        """Yields earlier turns: passage, question and answer, one line each."""
        for example in self.prompts["examples"].split("\n\n"):
            passage, question, answer = example.split("\n")
            yield Message("user", question if closed else f"{passage}\n{question}")
            yield Message("assistant", answer)

    def structure(self, state: State, *, last: bool) -> Structure:
        return tag_structure(("answer",))

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        return parse_tag(text, ("answer",))
