"""Search-R1's loop and its two descendants: reason, search, read, answer, all in one turn.

Sources: Eval-RAR algorithm 1 and its prompt (in our own words); Search-R1; AutoRefine. They differ
in their tags and in the policy's text about the documents (`agent.segments.SearchTags`).
"""

from typing import ClassVar, Literal

from pydantic import Field

from branchwise.types import Message

from .protocol import AgentProtocol, register_protocol
from .segments import AUTOREFINE, EVAL_RAR, SEARCH_R1, SearchTags, first_pair
from .settings import AgentSettings
from .state import Action, State, Step
from .tags import without_tags

CORRECTION = "\nMy action is wrong. Let me try again.\n"
"""The environment's text after an invalid action, in the policy's own voice (Eval-RAR)."""


class SearchLoopSettings(AgentSettings):
    """Search-R1's loop and its descendants.

    Attributes:
        protocol: Whose tags are used.
        max_corrections: Most invalid actions that are answered with a corrective sentence; the next
            one ends the trajectory.
        prefill: Beginning of the assistant's turn.
    """

    protocol: Literal["eval-rar", "search-r1", "autorefine"]
    max_corrections: int = Field(default=3, ge=0)
    prefill: str = ""


class SearchLoop(AgentProtocol):
    """Several searches and one answer, in the tags of `search_tags`."""

    forces_answer = False
    continues = True
    stops = ("</search>", "</answer>")
    search_tags: ClassVar[SearchTags]
    settings_class = SearchLoopSettings
    settings: SearchLoopSettings

    @property
    def prefill(self) -> str:
        return self.settings.prefill

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        system = Message("system", self.prompts["system"])
        return (system, Message("user", f"Question: {state.question}"))

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        """Returns the first complete search or answer; later text is ignored."""
        pair = first_pair(text, self.search_tags.pairs, ("search", "answer"))
        if pair is None:
            return Action.invalid("no complete <search> or <answer>")
        opened, closed = pair
        content = text[opened.end : closed.start].strip()
        if not content:
            return Action.invalid(f"<{opened.name}> is blank")
        return Action(opened.name, content)

    def next_stage(self, state: State, action: Action, *, last: bool = False) -> str:
        """Continues after an invalid action while calls and corrections remain."""
        corrected = sum(step.action.kind == "invalid" for step in state.steps)
        may_continue = not last and corrected < self.settings.max_corrections
        if action.kind == "invalid" and may_continue:
            return state.stage
        return super().next_stage(state, action, last=last)

    def inserted(self, state: State, step: Step) -> str:
        if step.action.kind == "invalid":
            return CORRECTION
        opening, closing = self.search_tags.pairs[self.search_tags.documents]
        shown = [
            f'Doc {number}(Title: "{without_tags(passage.title)}") {without_tags(passage.text)}'
            for number, passage in enumerate(step.passages, start=1)
        ]
        return f"\n\n{opening}" + "\n".join(shown or ["None"]) + f"{closing}\n\n"

    def stop_reason(self, state: State) -> str:
        """Returns "answer", "budget" after the last call, "invalid" after the last correction."""
        if state.steps[-1].action.kind == "invalid" and state.depth >= self.settings.max_steps:
            return "budget"
        return super().stop_reason(state)


@register_protocol
class EvalRAR(SearchLoop):
    """Eval-RAR: the policy evaluates the passages of each search before it continues."""

    name = "eval-rar"
    search_tags = EVAL_RAR


@register_protocol
class SearchR1(SearchLoop):
    """Search-R1: no evaluation."""

    name = "search-r1"
    search_tags = SEARCH_R1


@register_protocol
class AutoRefine(SearchLoop):
    """AutoRefine: the policy refines the documents instead of evaluating them."""

    name = "autorefine"
    search_tags = AUTOREFINE
