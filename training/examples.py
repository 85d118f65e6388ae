"""Supervised examples: one policy step, its prompt and the text to learn.

Token ids come from the template code that prompts the embedded engine, so training and sampling use
the same tokens. Only the policy's own tokens have a loss: its text and the token that ends its
turn, if it ends there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage.records import Message
from weights.chat_template import prompt_ids, target_ids

IGNORED = -100
"""Label of a token without a loss (PyTorch's convention)."""


@dataclass(frozen=True, slots=True)
class StepExample:
    """A state's messages and the step to learn.

    Attributes:
        messages: Prompt in the protocol's form.
        target: Text of the policy, without special tokens.
        stage: Stage of the step.
    """

    messages: tuple[Message, ...]
    target: str
    question_id: str
    stage: str


@dataclass(frozen=True, slots=True)
class TokenExample:
    """A step as token ids; only `target` has a loss."""

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    question_id: str = ""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)

    @property
    def labels(self) -> list[int]:
        """One label per token; `IGNORED` on the prompt."""
        return [IGNORED] * len(self.prompt) + list(self.target)


def tokenise(
    examples: Iterable[StepExample], tokenizer: Any, stops: tuple[str, ...] = ()
) -> list[TokenExample]:
    """Returns examples as token ids, in order; `stops` are the protocol's stop strings."""
    return [
        TokenExample(
            prompt_ids(example.messages, tokenizer),
            target_ids(example.target, tokenizer, stops),
            example.question_id,
        )
        for example in examples
    ]
