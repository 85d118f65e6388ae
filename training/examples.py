"""Supervised examples: one policy step, its prompt and the text to learn.

Token ids come from the template code that prompts the embedded engine, so training and sampling use
the same tokens. Only the policy's own tokens have a loss: its text and the token that ends its
turn, if it ends there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage.records import Message
from training.packing import StepTokens
from weights.chat_template import prompt_ids, target_ids


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


def tokenise(
    examples: Iterable[StepExample], tokenizer: Any, stops: tuple[str, ...] = ()
) -> list[StepTokens]:
    """Returns examples as token ids, in order; `stops` are the protocol's stop strings."""
    return [
        StepTokens(
            prompt_ids(example.messages, tokenizer), target_ids(example.target, tokenizer, stops)
        )
        for example in examples
    ]
