"""The EVO-RAG protocol: SEARCH, BACKTRACK, ANSWER or REFUSE, given all evidence so far.

Source: EVO-RAG section 3.2. There a state is s_t = (q_<t, D_<t, A_<t): earlier sub-queries, their
documents, and intermediate answers. Searches are on a stack. A search adds its passages. Every
later step may begin with a note, the intermediate answer, which belongs to the search on top.
BACKTRACK removes the search on top with its passages and notes; its query is still shown, in the
list of queries taken back. A BACKTRACK is an ordinary step, so a tree stays free of cycles.

Until a BACKTRACK, the prompt only grows at its end, so an engine's prefix cache and packed training
read its beginning once.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from branchwise.engines import Structure
from branchwise.types import Message, RetrievedPassage

from .protocol import AgentProtocol, register_protocol
from .settings import ConstrainedSettings
from .state import Action, State, Step
from .tags import CONTENT, fenced

_EMPTY = {"<backtrack/>": "backtrack", "<refuse/>": "refuse"}
_FILLED = ("search", "answer")
_LEADING_NOTE = re.compile(r"\s*<note>([^<>]*)</note>")
_ACTION = re.compile(r"\s*<(search|answer)>([^<>]*)</(search|answer)>\s*")


@dataclass(frozen=True, slots=True)
class LiveSearch:
    """A search that no BACKTRACK has removed: query, passages and notes.

    `number` counts all searches of the question from 1, including those taken back.
    """

    number: int
    query: str
    passages: tuple[RetrievedPassage, ...]
    notes: tuple[str, ...] = ()


class EvoRagAgentSettings(ConstrainedSettings):
    """EVO-RAG's protocol."""

    protocol: Literal["evo-rag"] = "evo-rag"


@register_protocol
class EvoRAG(AgentProtocol):
    """EVO-RAG's protocol (see module)."""

    name = "evo-rag"
    settings_class = EvoRagAgentSettings
    can_refuse = True

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        # A prompt offers only the allowed actions: before the first search, notes and backtracks
        # are not allowed.
        name = "forced" if last else "step" if live_searches(state.steps) else "first"
        return (Message("system", self.prompts[name]), Message("user", _user_text(state)))

    def structure(self, state: State, *, last: bool) -> Structure:
        stack = live_searches(state.steps)
        allowed = _allowed_actions(stack, last)
        tags = [f"<{kind}>{CONTENT}</{kind}>" for kind in allowed if kind in _FILLED]
        tags += [tag for tag, kind in _EMPTY.items() if kind in allowed]
        note = f"(<note>{CONTENT}</note>)?" if stack else ""
        # No `|` inside a group: `engines.embedded.structure` cuts every alternative at its bound.
        return Structure("regex", "|".join(note + tag for tag in tags))

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        stack = live_searches(state.steps)
        note = _LEADING_NOTE.match(text)
        if note and not stack:
            return Action.invalid("<note> is not allowed before a search")
        if note and not note[1].strip():
            return Action.invalid("<note> is empty")
        action = _parse_action(text[note.end() :] if note else text)
        if action.kind != "invalid" and action.kind not in _allowed_actions(stack, last):
            return Action.invalid(f"<{action.kind}> is not allowed here")
        return action

    def render(self, action: Action) -> str:
        """Returns the text of an action, after its note (part `note`) if it has one."""
        kind, note = action.kind, dict(action.parts).get("note")
        text = f"<{kind}>{action.content}</{kind}>" if kind in _FILLED else f"<{kind}/>"
        return text if note is None else f"<note>{note}</note>{text}"


def live_searches(steps: Sequence[Step]) -> tuple[LiveSearch, ...]:
    """Returns the searches that no BACKTRACK removed, oldest first."""
    stack: list[LiveSearch] = []
    searches = 0
    for step in steps:
        if stack and (note := note_of(step)):
            stack[-1] = replace(stack[-1], notes=(*stack[-1].notes, note))
        if step.action.kind == "search":
            searches += 1
            stack.append(LiveSearch(searches, step.action.content, step.passages))
        elif step.action.kind == "backtrack" and stack:
            stack.pop()
    return tuple(stack)


def note_of(step: Step) -> str | None:
    """Returns the note (intermediate answer) at the beginning of a step, if any."""
    note = _LEADING_NOTE.match(step.text)
    return note[1].strip() if note else None


def _allowed_actions(stack: Sequence[LiveSearch], last: bool) -> tuple[str, ...]:
    if last:
        return ("answer",)
    return ("search", "answer", "refuse", *(("backtrack",) if stack else ()))


def _parse_action(text: str) -> Action:
    """Reads exactly one action; its content must not be empty."""
    if (kind := _EMPTY.get(text.strip())) is not None:
        return Action(kind, "")
    action = _ACTION.fullmatch(text)
    if action is None or action[1] != action[3]:
        return Action.invalid("not one action")
    if not action[2].strip():
        return Action.invalid(f"<{action[1]}> is empty")
    return Action(action[1], action[2].strip())


def _user_text(state: State) -> str:
    """Returns the question, then the stack of searches, then the queries taken back."""
    stack = live_searches(state.steps)
    lines = [f"Question: {state.question}", *_lines_of_searches(stack)]
    live = {search.number for search in stack}
    queries = [step.action.content for step in state.steps if step.action.kind == "search"]
    taken_back = [query for n, query in enumerate(queries, start=1) if n not in live]
    if taken_back:
        lines.append(f"Taken back: {'; '.join(taken_back)}")
    return "\n".join(lines)


def _lines_of_searches(stack: Sequence[LiveSearch]) -> Iterator[str]:
    """Yields the lines of each search; a passage that is already shown is only named."""
    shown: set[str] = set()
    for search in stack:
        yield f"Search: {search.query}"
        for passage in search.passages:
            again = passage.id in shown
            yield fenced(passage.title, "as above" if again else passage.text)
            shown.add(passage.id)
        if not search.passages:
            yield "(no passage found)"
        yield from (f"Note: {note}" for note in search.notes)
