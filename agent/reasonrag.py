"""The ReasonRAG protocol: Reasoning → (Grounding → Reasoning)* → Terminal.

Source: ReasonRAG section 2.4 and figures 12 and 13 (prompts in our own words). Passages appear
only in Grounding; Reasoning sees the queries and the evidence. The prompt puts what is shared
first (system text, then question, then thoughts), so that an engine's prefix cache hits.
"""

from dataclasses import dataclass, field
from functools import cached_property

from agent.prompts import load_prompts, prompts_digest
from agent.protocol import shown_passages
from agent.state import Action, ActionKind, Stage, State
from agent.tags import fenced, one_tag, tag_structure
from engines.sampling import Structure
from storage.records import Message

NO_EVIDENCE = "None"
"""What Grounding writes when no passage helps; a valid action."""

_ALLOWED: dict[Stage, tuple[ActionKind, ...]] = {
    "reasoning": ("query", "answer"),
    "grounding": ("evidence",),
    "terminal": (),
}


@dataclass(frozen=True)
class ReasonRAG:
    """ReasonRAG's protocol (see module)."""

    name: str = "reasonrag"
    can_refuse: bool = False
    prompts: dict[str, str] = field(default_factory=lambda: load_prompts("reasonrag"))

    @cached_property
    def prompt_hash(self) -> str:
        return prompts_digest(self.prompts)

    def messages(self, state: State, *, forced: bool) -> tuple[Message, ...]:
        return (
            Message("system", self.prompts[_prompt_name(state, forced)]),
            Message("user", _user_text(state)),
        )

    def structure(self, state: State, *, forced: bool) -> Structure:
        return tag_structure(_allowed(state, forced))

    def parse(self, state: State, text: str, *, forced: bool) -> Action:
        return one_tag(text, _allowed(state, forced))

    def query_of(self, action: Action) -> str | None:
        return action.content if action.kind == "query" else None

    def next_stage(self, state: State, action: Action) -> Stage:
        if action.kind == "query":
            return "grounding"
        return "reasoning" if action.kind == "evidence" else "terminal"

    def render(self, action: Action) -> str:
        return f"<{action.kind}>{action.content}</{action.kind}>"


def _allowed(state: State, forced: bool) -> tuple[ActionKind, ...]:
    """Tags the next step may use. A forced step answers, whatever the stage."""
    return ("answer",) if forced else _ALLOWED[state.stage]


def _prompt_name(state: State, forced: bool) -> str:
    if forced:
        return "forced"
    if state.stage == "grounding":
        return "grounding"
    return "reasoning" if state.steps else "first"


def _user_text(state: State) -> str:
    """Question, then thoughts, then (in Grounding) the passages of the last query."""
    lines = [f"Question: {state.question}"]
    lines += [f"{step.action.kind.capitalize()}: {step.action.content}" for step in state.steps]
    if state.stage == "grounding":
        lines += [fenced(p.title, p.text) for p in shown_passages(state)] or ["(no passage found)"]
    return "\n".join(lines)
