"""What a policy has done so far on one question, as immutable values."""

from dataclasses import dataclass, replace
from typing import Literal

from storage.records import RetrievedPassage

Stage = Literal["reasoning", "grounding", "terminal"]
ActionKind = Literal["query", "evidence", "answer", "search", "backtrack", "refuse", "invalid"]


@dataclass(frozen=True, slots=True)
class Action:
    """What a policy's text means.

    `content` is the text inside the tag, verbatim but for surrounding white space; "" for an
    action that has none (backtrack, refuse) and for an invalid one. `reason` says why an action is
    invalid.
    """

    kind: ActionKind
    content: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One policy call: the stage it was made in, the model's own text, and its meaning.

    `passages` are what a query retrieved (empty for other actions).
    """

    stage: Stage
    text: str
    action: Action
    forced: bool = False
    passages: tuple[RetrievedPassage, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Question, steps so far, and where the protocol stands. The gold answer is not in it.

    Depth is the number of policy calls so far; the root has depth 0.
    """

    question: str
    stage: Stage = "reasoning"
    steps: tuple[Step, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.steps)

    @property
    def terminal(self) -> bool:
        return self.stage == "terminal"

    @property
    def answer(self) -> str | None:
        """The final answer, verbatim; null while there is none (or the last step was invalid)."""
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

    def after(self, step: Step, stage: Stage) -> "State":
        """The state that `step` leads to."""
        return replace(self, steps=(*self.steps, step), stage=stage)
