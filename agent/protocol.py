"""What a protocol is: prompts, tags, parsing and stages. `agent.reasonrag` is the first."""

from collections.abc import Sequence
from typing import Protocol

from agent.state import Action, Stage, State
from engines.sampling import Structure
from storage.records import Message, RetrievedPassage


class AgentProtocol(Protocol):
    """How a state becomes a prompt, and how a model's text becomes an action and a next state.

    Attributes:
        name: the value of `agent.protocol`.
        can_refuse: whether a policy may decline to answer (else unanswerable questions are
            skipped).
        prompt_hash: hash of all prompt files of the protocol; on every row they produced.
    """

    @property
    def name(self) -> str: ...
    @property
    def can_refuse(self) -> bool: ...
    @property
    def prompt_hash(self) -> str: ...

    def messages(self, state: State, *, forced: bool) -> tuple[Message, ...]:
        """The conversation that asks for the next step; `forced` demands an answer now."""
        ...

    def structure(self, state: State, *, forced: bool) -> Structure:
        """The constraint under which every completion parses."""
        ...

    def parse(self, state: State, text: str, *, forced: bool) -> Action:
        """Read the model's own text; what does not parse is an `invalid` action."""
        ...

    def query_of(self, action: Action) -> str | None:
        """The query to search for after this action, or null if it retrieves nothing."""
        ...

    def next_stage(self, state: State, action: Action) -> Stage:
        """The stage after `action`."""
        ...

    def render(self, action: Action) -> str:
        """The canonical text of an action (training targets, warm-start traces)."""
        ...


def shown_passages(state: State) -> Sequence[RetrievedPassage]:
    """Passages of the last query; what a Grounding prompt shows."""
    return state.steps[-1].passages if state.steps else ()
