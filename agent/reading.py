"""Reading: one turn, from the question (and passages, if some were found for it) to an answer.

For baselines beside a policy that searches. Which passages are shown is decided before the turn:
they are those of the state's last step, as in ReasonRAG's Grounding. Three worked examples come
first: an untuned small model answers in sentences without them, and exact match calls those wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from agent.prompts import load_prompts, prompts_digest
from agent.protocol import shown_passages
from agent.state import Action, Stage, State, Step
from agent.tags import fenced, one_tag, tag_structure
from engines.sampling import Structure
from storage.records import Message, RetrievedPassage


@dataclass(frozen=True)
class Reading:
    """The protocol of the single turn (see module). A root state is asked without passages."""

    name: str = "reading"
    can_refuse: bool = False
    prompts: dict[str, str] = field(default_factory=lambda: load_prompts("reading"))

    @cached_property
    def prompt_hash(self) -> str:
        return prompts_digest(self.prompts)

    def messages(self, state: State, *, forced: bool) -> tuple[Message, ...]:
        shown = [fenced(p.title, p.text) for p in shown_passages(state)]
        if state.steps and not shown:
            shown = ["(no passage found)"]
        return (
            Message("system", self.prompts["passages" if state.steps else "closed-book"]),
            *self._examples(closed=not state.steps),
            Message("user", "\n".join([*shown, f"Question: {state.question}"])),
        )

    def _examples(self, *, closed: bool) -> Iterator[Message]:
        """Earlier turns: passage, question and answer stand in a line each; blank lines between."""
        for example in self.prompts["examples"].split("\n\n"):
            passage, question, answer = example.split("\n")
            yield Message("user", question if closed else f"{passage}\n{question}")
            yield Message("assistant", answer)

    def structure(self, state: State, *, forced: bool) -> Structure:
        return tag_structure(("answer",))

    def parse(self, state: State, text: str, *, forced: bool) -> Action:
        return one_tag(text, ("answer",))

    def query_of(self, action: Action) -> str | None:
        return None

    def next_stage(self, state: State, action: Action) -> Stage:
        return "terminal"

    def render(self, action: Action) -> str:
        return f"<answer>{action.content}</answer>"


def with_passages(question: str, passages: tuple[RetrievedPassage, ...]) -> State:
    """The state after a search with the question itself, which nobody had to ask a model for."""
    search = Step("reasoning", "", Action("query", question), passages=passages)
    return State(question).after(search, "grounding")
