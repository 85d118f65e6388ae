"""Actions, steps, and the state of a trajectory: the steps so far on one question, immutable."""

from dataclasses import dataclass, replace

from branchwise.types import RetrievedPassage

TERMINAL = "terminal"
"""Stage of a finished trajectory; each protocol defines its other stages."""


INVALID = "invalid"
"""Kind of any text that is not an action of the protocol."""
ACTIONS = ("query", "evidence", "search", "backtrack", "answer", "refuse", INVALID)
"""All kinds of actions, of any protocol. A protocol that needs another kind adds it here."""


def is_search(kind: str) -> bool:
    """Returns whether the content of such actions is a query for the retriever."""
    return kind in ("query", "search")


def is_end(kind: str) -> bool:
    """Returns whether actions of this kind end a trajectory.

    `invalid` does, unless the protocol answers invalid actions with a corrective message.
    """
    return kind in ("answer", "refuse", INVALID)


@dataclass(frozen=True, slots=True)
class Action:
    """The meaning of a policy's text.

    Attributes:
        kind: One of `ACTIONS`.
        content: Text inside the tag without surrounding white space; "" for backtrack, refuse and
            invalid actions.
        reason: Reason that an action is invalid.
        parts: Other named sections of the same text, in order, such as ("relevance", "[1,5]").
    """

    kind: str
    content: str
    reason: str | None = None
    parts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def invalid(cls, reason: str) -> "Action":
        """Returns an invalid action with its reason."""
        return cls(INVALID, "", reason)


@dataclass(frozen=True, slots=True)
class Step:
    """One policy call: its stage, the model's own text, and the text's meaning.

    Attributes:
        text: Text of the policy, including the stop string that ended it.
        forced: Whether the prompt demanded an answer.
        passages: Passages of a search; empty for other actions.
        inserted: Text of the environment after the policy's, in a turn that continues. It is part
            of the next call's prompt, so it is never trained on.
        cut: Whether the call ended at the token limit.
        token_ids: Sampled tokens, if the engine reported them.
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
    """Question, steps so far, and stage of the protocol, without the gold answer.

    Depth is the number of policy calls so far; the root has depth 0.

    Attributes:
        given: Passages shown to the policy before its first call; () if none were found, None if
            none were looked up.
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
        """Final answer, verbatim; None if the last step did not answer."""
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
        """All passages that the policy has seen, in order, repeats included."""
        searched = [passage for step in self.steps for passage in step.passages]
        return (*(self.given or ()), *searched)

    def after(self, step: Step, stage: str) -> "State":
        """Returns the state that `step` leads to."""
        return replace(self, steps=(*self.steps, step), stage=stage)
