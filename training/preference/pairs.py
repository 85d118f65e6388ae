"""Preference pairs as token ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storage.records import Message, Pair
from training.packing import StepTokens
from weights.chat_template import prompt_ids, target_ids


@dataclass(frozen=True, slots=True)
class PreferenceTokens:
    """One pair: the state's prompt, and both steps."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    question_id: str = ""

    def __len__(self) -> int:
        """Returns the number of tokens of the longer sequence."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))

    @property
    def rows(self) -> tuple[StepTokens, StepTokens]:
        """Chosen step and rejected step, each after the prompt."""
        return StepTokens(self.prompt, self.chosen), StepTokens(self.prompt, self.rejected)


def tokenise_pairs(
    pairs: Iterable[Pair], tokenizer: Any, stops: tuple[str, ...] = ()
) -> list[PreferenceTokens]:
    """Returns pairs in order, as the token ids that the embedded engine prompts with.

    `stops` are the stop strings of the steps' protocol.
    """
    return [
        PreferenceTokens(
            prompt_ids(pair.prompt, tokenizer),
            _step(pair.chosen, tokenizer, stops),
            _step(pair.rejected, tokenizer, stops),
            pair.question_id,
        )
        for pair in pairs
    ]


def _step(messages: Sequence[Message], tokenizer: Any, stops: tuple[str, ...]) -> tuple[int, ...]:
    return target_ids("".join(message.content for message in messages), tokenizer, stops)
