"""Protocols: prompts, tags, parsing, stages, and the environment's replies.

A system's protocol is one registered class and its prompts. There are two kinds. Protocols that
rewrite their state (ReasonRAG, EVO-RAG) build a new prompt for every call. Protocols that continue
one assistant turn set `continues`: the prompt stays, followed by the text of the policy and of the
environment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self, TypeVar

from branchwise.base import Registry
from branchwise.engines import Structure
from branchwise.types import Message, Question, RetrievedPassage

from .prompts import load_prompts, prompts_digest
from .segments import Segment
from .settings import AgentSettings, ConstrainedSettings
from .state import INVALID, TERMINAL, Action, State, Step, is_end


@dataclass(frozen=True, init=False)
class AgentProtocol(ABC):
    """Turns a state into a prompt, and a model's text into an action and the next state.

    Attributes:
        name: Value of `agent.protocol`, and the folder of its prompts.
        settings_class: Class of the protocol's `agent:` block.
        can_refuse: Whether a policy may decline to answer. If not, unanswerable questions are
            skipped.
        forces_answer: Whether the last call that the budget allows demands an answer.
        continues: Whether all calls of a trajectory continue one assistant turn.
        stops: Strings that end a call; the policy's text includes the one that ended it.
        prefill: Beginning of the assistant's turn, before the policy's first token.
        settings: Budget and options.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[AgentSettings]] = AgentSettings
    can_refuse: ClassVar[bool] = False
    forces_answer: ClassVar[bool] = True
    continues: ClassVar[bool] = False
    stops: ClassVar[tuple[str, ...]] = ()

    settings: AgentSettings

    def __init__(self, settings: AgentSettings | None = None) -> None:
        """Binds the protocol to its settings; defaults to those of an empty block."""
        if settings is None:
            settings = self.settings_class.model_validate({"protocol": self.name})
        object.__setattr__(self, "settings", settings)

    @cached_property
    def prompts(self) -> dict[str, str]:
        """Prompts by file name."""
        return load_prompts(self.name)

    @cached_property
    def prompt_hash(self) -> str:
        """Hash of all prompt files, stored with every row."""
        return prompts_digest(self.prompts)

    @property
    def prefill(self) -> str:
        return ""

    @property
    def is_constrained(self) -> bool:
        """Whether decoding is constrained to `structure`, if the engine supports it."""
        return isinstance(self.settings, ConstrainedSettings) and self.settings.structured

    @property
    def shows_whole_replies(self) -> bool:
        """Whether prompts, and so the judge, show earlier steps as the policy wrote them."""
        return False

    @property
    def max_calls(self) -> int:
        """Maximum number of policy calls of a trajectory."""
        return self.settings.max_steps

    def unfit(self, question: Question) -> str | None:
        """Returns the reason that the protocol cannot use a question; None if it can."""
        return None if question.answerable or self.can_refuse else "unanswerable"

    def given(self, question: Question) -> tuple[RetrievedPassage, ...] | None:
        """Returns the references that come with the question; None if the protocol shows none."""
        return None

    def first_query(self, question: Question) -> str | None:
        """Returns the query of a search before the policy's first call, if any."""
        return None

    @abstractmethod
    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        """Returns the conversation that prompts for the next step.

        Args:
            state: A state that has not ended.
            last: Whether the budget allows no call after this one.
        """

    @abstractmethod
    def parse(self, state: State, text: str, *, last: bool) -> Action:
        """Reads the model's own text; text without a valid action is an invalid one."""

    def render(self, action: Action) -> str:
        """Returns the canonical text of an action (training targets, warm-start traces).

        By default, its tag after those of its parts, one per line.
        """
        sections = (*action.parts, (action.kind, action.content))
        return "\n".join(f"<{name}>{content}</{name}>" for name, content in sections)

    def structure(self, state: State, *, last: bool) -> Structure | None:
        """Returns a constraint that makes every completion parse; None for free text."""
        return None

    def read(self, state: State, text: str, *, last: bool, cut: bool) -> Action:
        """Reads a completion that may have ended at the token limit (`cut`)."""
        if cut:
            return Action.invalid("cut at the token limit")
        return self.parse(state, text, last=last)

    def next_stage(self, state: State, action: Action, *, last: bool = False) -> str:
        """Returns the stage after `action`; `agent.state.TERMINAL` ends the trajectory."""
        return TERMINAL if is_end(action.kind) or last else state.stage

    def inserted(self, state: State, step: Step) -> str:
        """Returns the environment's text after `step`, which was taken in `state`."""
        return ""

    def stop_reason(self, state: State) -> str:
        """Returns the reason that a finished trajectory ended.

        Returns:
            "answer", "forced", "refused", "invalid", or "budget" if the last allowed call did not
            answer.
        """
        kind = state.steps[-1].action.kind
        if kind == INVALID:
            return "invalid"
        if kind == "refuse":
            return "refused"
        if kind != "answer":
            return "budget"
        return "forced" if state.forced else "answer"

    def is_last(self, state: State) -> bool:
        """Returns whether the budget allows only one more call."""
        return state.depth + 1 >= self.settings.max_steps

    def prefix(self, state: State) -> tuple[str | tuple[int, ...], ...] | None:
        """Returns the assistant's turn so far, for `engines.sampling.SampleRequest.prefix`.

        None if the next call begins a turn.
        """
        if not self.continues:
            return (self.prefill,) if self.prefill else None
        parts: list[str | tuple[int, ...]] = [self.prefill]
        for step in state.steps:
            parts += [step.text if step.token_ids is None else step.token_ids, step.inserted]
        return tuple(part for part in parts if part) or None

    def prompt(self, state: State) -> tuple[Message, ...]:
        """Returns the messages before the next step, as training reads them.

        The assistant's messages at the end are the turn so far, in the parts of `prefix`. Rollouts
        continue it by token ids (`weights.chat_template.prompt_ids`).
        """
        parts = [self.prefill]
        if self.continues:
            parts += [part for step in state.steps for part in (step.text, step.inserted)]
        turn = (Message("assistant", part) for part in parts if part)
        return (*self.messages(state, last=self.is_last(state)), *turn)

    def segments(self, state: State) -> tuple[Segment, ...]:
        """Returns the texts of a trajectory by author, as outcome rewards read them."""
        segments = [Segment("prefill", self.prefill)]
        for step in state.steps:
            segments.append(Segment("policy", step.text, cut=step.cut))
            segments.append(Segment("environment", step.inserted))
        return tuple(segment for segment in segments if segment.text or segment.role == "policy")

    def with_budget(self, max_steps: int) -> Self:
        """Returns the protocol with another `agent.max_steps`."""
        return replace(self, settings=self.settings.model_copy(update={"max_steps": max_steps}))


P = TypeVar("P", bound=AgentProtocol)

PROTOCOLS: Registry[type[AgentProtocol]] = Registry("protocol", "branchwise.agent.protocols")
"""Protocols by their name in `agent.protocol`."""


def register_protocol(protocol: type[P]) -> type[P]:
    """Class decorator: adds a protocol under its `name`.

    Raises:
        ConfigError: If another protocol has the name.
    """
    PROTOCOLS.add(protocol.name, protocol, protocol.__module__)
    return protocol


def root_of(
    question: Question,
    protocol: AgentProtocol,
    passages: tuple[RetrievedPassage, ...] | None = None,
) -> State:
    """Returns the state before the first call.

    Args:
        question: Question; its gold fields are not used.
        protocol: Protocol that selects which of the question's references are shown.
        passages: Passages to show instead.
    """
    return State(
        question.question, given=protocol.given(question) if passages is None else passages
    )
