"""Embeds steps: a frozen model reads a step with its prompt, and its last state is the vector.

Source: EVO-RAG section 3.3, in which a frozen encoder embeds each trajectory prefix. A vector is
the output of the model's last norm for the last token, in float32. Each distinct prefix is read
once. The cache stores the vectors of a corpus of steps under a hash of the weights and all tokens.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from base.errors import ConfigError
from base.step_messages import StepMessages
from base.text import Log, replace_surrogates
from storage.cache import cache_section, get_or_build
from storage.records import Message
from weights.backbone import Backbone, Tokens, Vector
from weights.chat_template import prompt_ids, target_ids
from weights.policy_files import (
    PACKAGED,
    is_packaged,
    policy_digest,
    policy_files,
    tokenizer_of,
)

_VECTORS = "vectors.npy"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A step in context: the messages of its prompt, and the policy's own text."""

    messages: tuple[Message, ...]
    text: str


def base_of(policy: str) -> str:
    """Returns the name of the untrained weights below a policy's adapters.

    Args:
        policy: "packaged", "hub:owner/name", or a path (see `weights.policy_files`).

    Returns:
        "packaged", "hub:owner/name@revision", or a path.

    Raises:
        ConfigError: If the policy's files are missing or unusable.
    """
    files = policy_files(policy)
    if files.hub is not None:
        return files.hub
    return PACKAGED if is_packaged(files.base) else str(files.base)


class FrozenEncoder:
    """A frozen model that embeds steps; loads the weights when it first reads one.

    Attributes:
        model: Name of the model; includes the revision if it is from the hub.
        digest: Hash of weights and tokenizer.
    """

    def __init__(self, model: str, *, batch_tokens: int = 2048, log: Log | None = None) -> None:
        """Finds the model's files.

        Args:
            model: "packaged", "hub:owner/name", or a folder with any encoder or decoder of
                transformers, or with a policy.
            batch_tokens: Token limit per batch (see `weights.backbone`).
            log: Callback for progress and for messages about a damaged cache; defaults to the log
                (levels INFO and WARNING).

        Raises:
            ConfigError: If the model's files are missing or unusable.
        """
        self._files = policy_files(model)
        from_hub = self._files.hub if not self._files.adapters else None
        self.model = from_hub or model
        self.digest = policy_digest(self._files, "f32")
        self._batch_tokens = batch_tokens
        self._log = log or _log.info
        self._warn = log or _log.warning
        self._tokenizer: Any = None
        self._backbone: Backbone | None = None
        self._lock = threading.Lock()

    def tokens(self, prefixes: Sequence[Prefix]) -> list[Tokens]:
        """Returns the prefixes as the token ids that a policy is trained on.

        For a model without a chat template, they are the plain texts with the tokenizer's special
        tokens. Otherwise every step gets an end-of-turn token, even if a policy would continue it,
        so that all vectors are states of the same token.
        """
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = tokenizer_of(self._files.base)
            if not self._tokenizer.chat_template:
                texts = (
                    "\n".join([*(message.content for message in prefix.messages), prefix.text])
                    for prefix in prefixes
                )
                return [tuple(self._tokenizer(replace_surrogates(t))["input_ids"]) for t in texts]
            # Siblings share their prompt, and encoding prompts is most of the work.
            prompts = {prefix.messages for prefix in prefixes}
            ids = {prompt: prompt_ids(prompt, self._tokenizer) for prompt in prompts}
            return [
                (*ids[prefix.messages], *target_ids(prefix.text, self._tokenizer))
                for prefix in prefixes
            ]

    def embed(self, sequences: Sequence[Tokens]) -> NDArray[np.float32]:
        """Returns vectors of shape (len(sequences), width); reads equal sequences once.

        Args:
            sequences: At least one sequence of token ids.

        Raises:
            ConfigError: If the model cannot be loaded, or a sequence is too long for it.
        """
        with self._lock:
            vectors = self._read(sorted(set(sequences)))
        return np.stack([vectors[tokens] for tokens in sequences])

    def embed_cached(self, sequences: Sequence[Tokens]) -> NDArray[np.float32]:
        """Returns the vectors like `embed`, from the cache if it has these sequences.

        Raises:
            ConfigError: See `embed`; or if other users can write to the cache.
            StorageError: If the cache cannot be written.
        """
        ordered = sorted(set(sequences))
        key = hashlib.blake2b(self.digest.encode(), digest_size=16)
        for tokens in ordered:
            key.update(json.dumps(tokens).encode() + b"\n")

        def build(new: Path) -> None:
            np.save(new / _VECTORS, self.embed(ordered))

        folder = cache_section("embeddings") / key.hexdigest()
        stored = np.load(get_or_build(folder, build, self._warn) / _VECTORS)
        vectors = dict(zip(ordered, stored, strict=True))
        return np.stack([vectors[tokens] for tokens in sequences])

    def _read(self, sequences: Sequence[Tokens]) -> dict[Tokens, Vector]:
        """Returns the model's vectors, read batch by batch."""
        if self._backbone is None:
            self._backbone = Backbone.load(self._files)
        longest, limit = max(map(len, sequences)), self._backbone.most_tokens
        if limit is not None and longest > limit:
            raise ConfigError(
                f"the encoder {self.model} reads at most {limit} tokens, but a step with its "
                f"prompt has {longest}. Set training.reward_model.max_length to {limit} or less, "
                "or choose another training.reward_model.encoder"
            )
        messages = StepMessages(self._log, "steps embedded", len(sequences))
        vectors: dict[Tokens, Vector] = {}
        for batch in self._backbone.last_states(sequences, self._batch_tokens):
            vectors |= batch
            messages.report(len(vectors))
        return vectors
