"""The state of a trajectory: the steps so far on one question, as immutable values."""

from dataclasses import dataclass, replace

from agent.actions import INVALID
from storage.records import RetrievedPassage

TERMINAL = "terminal"
"""The stage of a finished trajectory; the other stages are the protocol's own."""


@dataclass(frozen=True, slots=True)
class Action:
    """The meaning of a policy's text.

    Attributes:
        kind: A key of `agent.actions.ACTIONS`.
        content: The text inside the tag without surrounding white space; "" for an action that
            has none (backtrack, refuse) and for an invalid one.
        reason: Why an action is invalid.
        parts: Other named sections of the same text, in order, such as ("relevance", "[1,5]").
    """

    kind: str
    content: str
    reason: str | None = None
    parts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def invalid(cls, reason: str) -> "Action":
        """Returns the action of a text that is not a valid one."""
        return cls(INVALID, "", reason)


@dataclass(frozen=True, slots=True)
class Step:
    """One policy call: the stage it was made in, the model's own text, and its meaning.

    Attributes:
        text: Text of the policy, including the stop string that ended it.
        forced: Whether the prompt demanded an answer.
        passages: Passages of a search; empty for other actions.
        inserted: What the environment wrote after the text into a turn that continues. It is
            part of the next call's prompt, so it is never trained on.
        cut: Whether the call ended at the token limit.
        token_ids: The tokens that were sampled, if the engine reported them.
        total_tokens: Tokens of the call's prompt and completion.
    """

    stage: str
    text: str
    action: Action
    forced: bool = False
    passages: tuple[RetrievedPassage, ...] = ()
    inserted: str = ""
    cut: bool = False
    token_ids: tuple[int, ...] | None = None
    total_tokens: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Question, steps so far, and stage of the protocol. It does not hold the gold answer.

    Depth is the number of policy calls so far; the root has depth 0.

    Attributes:
        given: Passages that the policy was shown before its first call; None if nobody looked
            for any.
    """

    question: str
    stage: str = "reasoning"
    steps: tuple[Step, ...] = ()
    given: tuple[RetrievedPassage, ...] | None = None

    @property
    def depth(self) -> int:
        return len(self.steps)

    @property
    def terminal(self) -> bool:
        return self.stage == TERMINAL

    @property
    def answer(self) -> str | None:
        """The final answer, verbatim; None without one (or if the last step was invalid)."""
        if self.steps and self.steps[-1].action.kind == "answer":
            return self.steps[-1].action.content
        return None

    @property
    def forced(self) -> bool:
        """Whether the last step was made with the forced-answer prompt."""
        return bool(self.steps) and self.steps[-1].forced

    @property
    def refused(self) -> bool:
        return bool(self.steps) and self.steps[-1].action.kind == "refuse"

    @property
    def retrieved(self) -> tuple[RetrievedPassage, ...]:
        """All passages that the policy was shown, in order, repeats included."""
        found = [passage for step in self.steps for passage in step.passages]
        return (*(self.given or ()), *found)

    def after(self, step: Step, stage: str) -> "State":
        """Returns the state that `step` leads to."""
        return replace(self, steps=(*self.steps, step), stage=stage)
