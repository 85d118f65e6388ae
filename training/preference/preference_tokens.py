"""Preference pairs as token ids, and those held out to test whether the training generalises."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from branchwise.base import ConfigError, share_of
from branchwise.types import Message, Pair
from branchwise.weights import prompt_ids, target_ids

from ..packing import StepTokens


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

    def step(messages: Sequence[Message]) -> tuple[int, ...]:
        return target_ids("".join(message.content for message in messages), tokenizer, stops)

    return [
        PreferenceTokens(
            prompt_ids(pair.prompt, tokenizer),
            step(pair.chosen),
            step(pair.rejected),
            pair.question_id,
        )
        for pair in pairs
    ]


@dataclass(frozen=True, slots=True)
class HoldoutScore:
    """How a trained policy orders pairs that it was not trained on.

    Attributes:
        accuracy: Share of the pairs whose chosen step gained more over the start than the rejected
            one; a tie counts half, so the start itself has 0.5.
        margin: Mean difference of the gains, in nats times beta.
        loss: Mean of −log σ of the margins; ln 2 for the start.
    """

    pairs: int
    accuracy: float
    margin: float
    loss: float

    def __str__(self) -> str:
        return (
            f"{self.pairs} held-out pairs: accuracy {self.accuracy:.3f} (0.5 before), "
            f"margin {self.margin:+.4f}, loss {self.loss:.3f}"
        )


def split_holdout(
    pairs: Sequence[PreferenceTokens], share: float, seed: int
) -> tuple[list[PreferenceTokens], list[PreferenceTokens]]:
    """Returns the training pairs and the held-out pairs, in order, split by question.

    Args:
        share: Share of the questions, in [0, 0.5]; a hash of the question and the seed decides.

    Raises:
        ConfigError: If all pairs are held out.
    """
    held_out = {p.question_id for p in pairs if share_of(f"holdout:{seed}:{p.question_id}") < share}
    trained = [pair for pair in pairs if pair.question_id not in held_out]
    if not trained:
        raise ConfigError(
            f"training.dpo.holdout {share} keeps all {len(pairs)} pairs out of the training; "
            "lower it, or annotate more questions"
        )
    return trained, [pair for pair in pairs if pair.question_id in held_out]


def score(
    pairs: Sequence[PreferenceTokens],
    policy: Mapping[StepTokens, float],
    start: Mapping[StepTokens, float],
    beta: float,
) -> HoldoutScore:
    """Scores pairs (at least one) by the trained policy's implicit reward.

    Source: DPO, Rafailov et al. 2023, eq. 5.

    Args:
        policy: Log-probabilities of all steps under the trained policy, in nats.
        start: Log-probabilities of all steps under the start, in nats.
    """
    margins = []
    for pair in pairs:
        chosen, rejected = (policy[row] - start[row] for row in pair.rows)
        margins.append(beta * (chosen - rejected))
    right = sum(1.0 if m > 0 else 0.5 if m == 0 else 0.0 for m in margins)
    loss = sum(max(-m, 0.0) + math.log1p(math.exp(-abs(m))) for m in margins)
    return HoldoutScore(
        len(pairs), right / len(pairs), sum(margins) / len(pairs), loss / len(pairs)
    )
