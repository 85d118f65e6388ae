"""The ReasonRAG protocol: Reasoning → (Grounding → Reasoning)* → Terminal.

Source: ReasonRAG section 2.4 and figures 12 and 13 (prompts in our own words). Passages appear
only in Grounding; Reasoning sees the queries and the evidence. The prompt puts what is shared
first (system text, then question, then thoughts), so that an engine's prefix cache hits.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from agent.prompts import load_prompts, prompts_digest
from agent.protocol import shown_passages
from agent.state import Action, ActionKind, Stage, State
from engines.sampling import Message, Structure

NO_EVIDENCE = "None"
"""What Grounding writes when no passage helps; a valid action."""

MAX_CONTENT_CHARS = 300
"""Longest tag content that structured decoding allows."""

_TAG = re.compile(r"<(/?)(query|evidence|answer)>")
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
        body = f"[^<>\\n]{{1,{MAX_CONTENT_CHARS}}}"
        kinds = _allowed(state, forced)
        return Structure("regex", "|".join(f"<{k}>{body}</{k}>" for k in kinds))

    def parse(self, state: State, text: str, *, forced: bool) -> Action:
        """Exactly one well-formed tag, of a kind this stage allows, with something in it."""
        # Tag by tag: a pattern for a whole pair takes hours over a megabyte of opened tags.
        tags = list(islice(_TAG.finditer(text), 3))
        if [tag[1] for tag in tags] != ["", "/"] or tags[0][2] != tags[1][2]:
            return Action("invalid", "", "not one tag, opened and closed")
        kind, content = tags[0][2], text[tags[0].end() : tags[1].start()].strip()
        if kind not in _allowed(state, forced):
            return Action("invalid", "", f"<{kind}> is not allowed here")
        if not content:
            return Action("invalid", "", f"<{kind}> is empty")
        return Action(kind, content)

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
        lines += [_fenced(p.title, p.text) for p in shown_passages(state)] or ["(no passage found)"]
    return "\n".join(lines)


def _fenced(title: str, text: str) -> str:
    """A passage that cannot close its fence, nor pose as a tag of the protocol.

    Angle brackets become look-alikes and the passage stays on one line, so no text of it can
    look like a line of ours. Everything else stays verbatim: answers are copied from here.
    """
    return f"<passage>{_inert(title)}: {_inert(text)}</passage>"


def _inert(text: str) -> str:
    return " ".join(text.split()).replace("<", "‹").replace(">", "›")
