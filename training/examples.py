"""Supervised examples: one policy step, the prompt it was made in and the text to learn.

Token ids come from the same template code that prompts the embedded engine, so that a policy is
trained on the tokens it is later asked with. The loss is on the policy's own tokens only: its text
and the token that ends its turn, if it ends there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage.records import Message
from weights.chat_template import prompt_ids, target_ids

IGNORED = -100
"""Label of a token that carries no loss (PyTorch's convention)."""


@dataclass(frozen=True, slots=True)
class StepExample:
    """A state's messages and the step to learn.

    Attributes:
        messages: Prompt in the protocol's form.
        target: the policy's text, without special tokens.
        stage: the stage the step is made in.
        weight: Weight of its loss; ≥ 0.
    """

    messages: tuple[Message, ...]
    target: str
    question_id: str
    stage: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenExample:
    """A step as token ids: `prompt` carries no loss, `target` does."""

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    weight: float = 1.0
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
            example.weight,
            example.question_id,
        )
        for example in examples
    ]
