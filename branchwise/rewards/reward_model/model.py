"""A trained reward model: scores a step before its outcome is known.

Source: EVO-RAG section 3.3; the score is Σ_k w_k(t) · head k, with the schedule's weights at the
step's own time. A model's folder contains `heads.safetensors`, and `training.json` with the encoder
of the heads:

    {"kind": "reward-model", "encoder": "packaged", "encoder_digest": …, "heads_digest": …}

`encoder` is "packaged", "hub:owner/name@revision" or a path relative to the folder.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from branchwise.agent import State
from branchwise.base import ConfigError, digest_of, object_inside, replace_surrogates
from branchwise.modeling import FrozenEncoder, Prefix
from branchwise.types import Message
from branchwise.weights import HUB, PACKAGED, TRAINING_RECORD, path_from

from ..evo_rag.schedule import Weights
from .heads import Heads

KIND = "reward-model"
HEADS = "heads.safetensors"

DIGITS = 4
"""Decimals of a score; further ones depend on batch neighbours and threads."""

Prompt = Callable[[State], Sequence[Message]]
"""State → messages of the prompt for its next step."""


class RewardModel:
    """Scores steps under a recipe's schedule.

    Attributes:
        digest: Hash of the heads and their encoder.
    """

    def __init__(
        self,
        heads: Heads,
        encoder: FrozenEncoder,
        weights: Callable[[int], Weights],
        *,
        max_length: int,
    ) -> None:
        """Combines heads and encoder.

        Args:
            weights: Weights of the heads, by the 0-based index of the policy call.
            max_length: Tokens of the longest step after its prompt.
        """
        self.digest = digest_of(heads.digest, encoder.digest)
        self._heads, self._encoder, self._max_length = heads, encoder, max_length
        self._weights = weights

    @classmethod
    def load(cls, folder: Path, weights: Callable[[int], Weights]) -> "RewardModel":
        """Returns a model written by `branchwise train-rm`; its encoder loads at the first step.

        Raises:
            ConfigError: If the folder lacks a model, or the encoder is missing or has changed.
            StorageError: If its heads cannot be read, or belong to another training.
        """
        record = read_record(folder)
        heads = Heads.load(folder / HEADS)
        if heads.digest != record["heads_digest"]:
            raise ConfigError(
                f"{folder}: {HEADS} and {TRAINING_RECORD} are from different trainings; retrain "
                "with `branchwise train-rm`"
            )
        name = record["encoder"]
        encoder = FrozenEncoder(
            name if _is_name(name) else str(folder / name),
            batch_tokens=record["settings"]["batch_tokens"],
        )
        if encoder.digest != record["encoder_digest"]:
            raise ConfigError(
                f"{folder}: the weights of its encoder {encoder.model} have changed since "
                "the training; restore them, or retrain with `branchwise train-rm`"
            )
        return cls(heads, encoder, weights, max_length=record["settings"]["max_length"])

    def score(self, prefixes: Sequence[Prefix], t: Sequence[int]) -> list[float | None]:
        """Returns a score per step; only comparisons of them are meaningful.

        Args:
            prefixes: Steps with their prompts.
            t: 0-based index of the policy call that made each.

        Returns:
            One score per step, of any sign; None for a step longer than the model was trained on.
        """
        tokens = self._encoder.tokens(prefixes)
        scored = [i for i, ids in enumerate(tokens) if len(ids) <= self._max_length]
        scores: list[float | None] = [None] * len(prefixes)
        if scored:
            vectors = self._encoder.embed([tokens[i] for i in scored])
            scales = [self._weights(t[i]) for i in scored]
            for i, score in zip(scored, self._heads.scores(vectors, scales).tolist(), strict=True):
                scores[i] = round(score, DIGITS)
        return scores


def prefix_of(state: State, prompt: Prompt) -> Prefix:
    """Returns the last step of `state`, after its prompt."""
    step = state.steps[-1]
    before = replace(state, stage=step.stage, steps=state.steps[:-1])
    # Same form as from a stored tree, so that both get the same scores.
    messages = tuple(Message(m.role, replace_surrogates(m.content)) for m in prompt(before))
    return Prefix(messages, replace_surrogates(step.text))


def read_record(folder: Path) -> dict[str, Any]:
    """Reads `training.json` of a reward model's folder.

    Raises:
        ConfigError: If the folder does not contain a reward model.
    """
    try:
        record = object_inside(folder, TRAINING_RECORD)
        if record["kind"] == KIND:
            _check_complete(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: no reward model here ({error}); train one with `branchwise train-rm`, and "
            "name its folder in `reward_model:`"
        ) from error
    if record["kind"] != KIND:
        path = folder / TRAINING_RECORD
        raise ConfigError(f"{path}: describes a `{record['kind']}`, not a {KIND}")
    return record


def _check_complete(record: dict[str, Any]) -> None:
    """Checks that a record is complete.

    Raises:
        KeyError: If an entry is missing.
        ValueError: If an entry has the wrong type.
    """
    names = ("encoder", "encoder_digest", "heads_digest")
    if not all(isinstance(record[name], str) for name in names):
        raise ValueError(f"{', '.join(names)} must be text")
    sizes = (record["settings"][name] for name in ("batch_tokens", "max_length"))
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(
            "settings.batch_tokens and settings.max_length must be whole numbers above 0"
        )


def reward_model_digest(folder: Path) -> str:
    """Returns `RewardModel.digest` of a folder, without a check of its encoder.

    Raises:
        ConfigError: If the folder does not contain a reward model.
    """
    record = read_record(folder)
    return digest_of(record["heads_digest"], record["encoder_digest"])


def stored_encoder(folder: Path, encoder: str) -> str:
    """Returns an encoder's name in the form that `training.json` of `folder` stores."""
    return encoder if _is_name(encoder) else path_from(folder, Path(encoder))


def _is_name(encoder: str) -> bool:
    return encoder == PACKAGED or encoder.startswith(HUB)
