"""The R1-Searcher protocol: one turn of reasoning that pauses at each query.

Source: R1-Searcher section 2.2 and its prompts (in our own words). The environment inserts
documents after a query inside `<think>`, and the turn continues.
"""

from itertools import chain
from typing import Literal

from pydantic import Field

from branchwise.types import Message

from .protocol import AgentProtocol, register_protocol
from .segments import R1_SEARCHER, Tag, find_tags, policy_text, section
from .settings import AgentSettings
from .state import Action, State, Step
from .tags import without_tags

QUERY_END = R1_SEARCHER["query"][1]
ANSWER_END = R1_SEARCHER["answer"][1]


class R1SearcherAgentSettings(AgentSettings):
    """R1-Searcher's protocol.

    Attributes:
        max_retrievals: Most searches per trajectory.
        prompt: Prompt for a `base` or an `instruct` model.
        prefill: Beginning of the assistant's turn. Defaults to `<think>` for the `base` prompt,
            else to nothing.
    """

    protocol: Literal["r1-searcher"] = "r1-searcher"
    max_retrievals: int = Field(default=8, ge=0)
    prompt: Literal["base", "instruct"] = "base"
    prefill: str | None = None


@register_protocol
class R1Searcher(AgentProtocol):
    """R1-Searcher's protocol (see module)."""

    name = "r1-searcher"
    settings_class = R1SearcherAgentSettings
    settings: R1SearcherAgentSettings
    forces_answer = False
    continues = True
    stops = (QUERY_END, ANSWER_END)

    @property
    def prefill(self) -> str:
        """`<think>` for the base model's prompt; an instruct model writes it itself."""
        default = R1_SEARCHER["think"][0] if self.settings.prompt == "base" else ""
        return default if self.settings.prefill is None else self.settings.prefill

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        system = Message("system", self.prompts[self.settings.prompt])
        return (system, Message("user", f"Question: {state.question}"))

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        if text.endswith(QUERY_END):
            return self._query(state, text)
        if not text.endswith(ANSWER_END):
            return Action.invalid("ended without a query or an answer")
        segments = self.segments(state.after(Step(state.stage, text, Action("answer", "")), ""))
        # Nothing is repaired: with two answers, neither is read, but the trajectory still ends.
        return Action("answer", (section(policy_text(segments), "answer") or "").strip())

    def _query(self, state: State, text: str) -> Action:
        """Returns the search at the end of a segment, or an invalid action with the reason."""
        own_tags = list(find_tags(text, R1_SEARCHER))
        queries = [tag for tag in own_tags if tag.name == "query"]
        if [tag.closing for tag in queries] != [False, True]:
            return Action.invalid("not one query, opened and closed")
        opened, closed = queries
        query = text[opened.end : closed.start].strip()
        if not query or own_tags.index(closed) != own_tags.index(opened) + 1:
            return Action.invalid("the query is blank or holds a tag")
        if not self._is_thinking(state, own_tags[: own_tags.index(opened)]):
            return Action.invalid("the query is not inside <think>")
        searches = sum(step.action.kind == "search" for step in state.steps)
        if searches >= self.settings.max_retrievals:
            return Action.invalid("no retrieval is left (agent.max_retrievals)")
        return Action("search", query)

    def _is_thinking(self, state: State, before: list[Tag]) -> bool:
        """Returns whether exactly `<think>` is open: no `</think>` and no `<answer>` yet."""
        texts = (self.prefill, *(step.text for step in state.steps))
        earlier = chain(*(find_tags(text, R1_SEARCHER) for text in texts), before)
        sections = [(tag.name, tag.closing) for tag in earlier if tag.name in ("think", "answer")]
        return sections == [("think", False)]

    def inserted(self, state: State, step: Step) -> str:
        opening, closing = R1_SEARCHER["documents"]
        shown = [
            f"({number}) {without_tags(passage.title)}: {without_tags(passage.text)}"
            for number, passage in enumerate(step.passages, start=1)
        ]
        return "\n".join(["\n", opening, *(shown or ["None"]), closing, "\n"])

    def stop_reason(self, state: State) -> str:
        """Returns "answer", "invalid", "budget", "cut", or "no-answer" if the text just stopped."""
        last = state.steps[-1]
        if last.cut:
            return "cut"
        if last.action.kind == "invalid" and not last.text.endswith(self.stops):
            return "no-answer"
        return super().stop_reason(state)

    def render(self, action: Action) -> str:
        """Returns the query or answer after its reasoning (part `think`)."""
        think = dict(action.parts).get("think", "")
        if action.kind == "search":
            opening, closing = R1_SEARCHER["query"]
            return f"{think}{opening}{action.content}{closing}"
        return f"{think}</think>\n<answer>{action.content}</answer>"
