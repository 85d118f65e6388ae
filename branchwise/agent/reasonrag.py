"""The ReasonRAG protocol: Reasoning → (Grounding → Reasoning)* → Terminal.

Source: ReasonRAG section 2.4 and figures 12 and 13 (prompts in our own words). Passages appear only
in Grounding; Reasoning sees the queries and the evidence. The prompt begins with its shared parts
(system text, then question, then thoughts), so that an engine's prefix cache hits.
"""

from typing import Literal

from branchwise.engines import Structure
from branchwise.types import Message

from .protocol import AgentProtocol, register_protocol
from .settings import ConstrainedSettings
from .state import TERMINAL, Action, State, Step
from .tags import fenced, parse_tag, tag_structure

_ALLOWED: dict[str, tuple[str, ...]] = {
    "reasoning": ("query", "answer"),
    "grounding": ("evidence",),
    TERMINAL: (),
}
_NEXT = {"query": "grounding", "evidence": "reasoning"}


class ReasonRagAgentSettings(ConstrainedSettings):
    """ReasonRAG's protocol.

    Attributes:
        history: Earlier steps in the prompts: the `contents` of their tags, or the whole
            `responses` (the paper, equations 2, 4 and 6), which keep the reasoning that a large
            model writes before its tag.
    """

    protocol: Literal["reasonrag"] = "reasonrag"
    history: Literal["contents", "responses"] = "contents"


@register_protocol
class ReasonRAG(AgentProtocol):
    """ReasonRAG's protocol (see module)."""

    name = "reasonrag"
    settings_class = ReasonRagAgentSettings
    settings: ReasonRagAgentSettings

    @property
    def shows_whole_replies(self) -> bool:
        return self.settings.history == "responses"

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        name = "forced" if last else state.stage if state.steps else "first"
        text = "\n".join(self._lines(state))
        return (Message("system", self.prompts[name]), Message("user", text))

    def structure(self, state: State, *, last: bool) -> Structure:
        return tag_structure(_allowed_actions(state, last))

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        return parse_tag(text, _allowed_actions(state, last))

    def next_stage(self, state: State, action: Action, *, last: bool = False) -> str:
        return _NEXT.get(action.kind, TERMINAL)

    def _lines(self, state: State) -> list[str]:
        """Returns the question, then thoughts, then (in Grounding) the last query's passages."""
        lines = [f"Question: {state.question}"]
        lines += [self._thought(step) for step in state.steps]
        if state.stage == "grounding":
            shown = state.steps[-1].passages if state.steps else ()
            lines += [fenced(p.title, p.text) for p in shown] or ["(no passage found)"]
        return lines

    def _thought(self, step: Step) -> str:
        if self.shows_whole_replies:
            return step.text.strip()
        return f"{step.action.kind.capitalize()}: {step.action.content}"


def _allowed_actions(state: State, last: bool) -> tuple[str, ...]:
    """Returns the allowed tags of the next step. A forced step answers in any stage."""
    return ("answer",) if last else _ALLOWED[state.stage]
