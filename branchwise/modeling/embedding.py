"""Embeds steps: a frozen model reads a step with its prompt, and its last state is the vector.

Source: EVO-RAG section 3.3, in which a frozen encoder embeds each trajectory prefix. A vector is
the output of the model's last norm for the last token, in float32. Each distinct prefix is read
once. The cache stores the vectors of a corpus of steps under a hash of the weights and all tokens.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from branchwise.base import ConfigError, Log, StepMessages, replace_surrogates
from branchwise.storage import cache_section, get_or_build
from branchwise.types import Message
from branchwise.weights import (
    PACKAGED,
    PolicyFiles,
    is_packaged,
    load_policy,
    policy_digest,
    policy_files,
    pretrained,
    prompt_ids,
    target_ids,
    tokenizer_of,
)

from .token_tree import prefix_batches, prefix_tree
from .tree_attention import enable_tree_attention, tree_attention_blocker, tree_inputs

Tokens = tuple[int, ...]
Vector = NDArray[np.float32]

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
        policy: "packaged", "hub:owner/name", or a path (see `weights.policies`).

    Returns:
        "packaged", "hub:owner/name@revision", or a path.

    Raises:
        ConfigError: If the policy's files are missing or unusable.
    """
    files = policy_files(policy)
    if files.hub is not None:
        return files.hub
    return PACKAGED if is_packaged(files.base) else str(files.base)


class Backbone:
    """A frozen model without its output layer, which returns the last states of sequences.

    A decoder reads many sequences as one tree (`modeling.tree_attention`), so it reads shared
    prefixes only once. In an encoder, tokens also attend to later tokens, so it reads a padded
    batch.

    Attributes:
        reads_trees: Whether the model reads sequences as one tree.
        most_tokens: Longest sequence in tokens; None if the configuration does not give it.
    """

    def __init__(self, model: Any) -> None:
        """Freezes a transformers model without output layer, such as one from `AutoModel`."""
        model.config.use_cache = False
        self._model = model.eval().requires_grad_(False)
        self.reads_trees = tree_attention_blocker(model) is None and _is_causal(model)
        if self.reads_trees:
            enable_tree_attention(model)
        self.most_tokens: int | None = getattr(model.config, "max_position_embeddings", None)

    @classmethod
    def load(cls, files: PolicyFiles) -> "Backbone":
        """Loads any encoder or decoder in float32, to the GPU if there is one.

        Raises:
            ConfigError: If the model cannot be loaded, or is an encoder-decoder.
        """
        import torch

        if files.base.is_file() or files.adapters:
            model = load_policy(files)[0].base_model
        else:
            try:
                model = pretrained("AutoModel", files.base, dtype=torch.float32)
            except ConfigError as error:
                raise ConfigError(f"cannot load the encoder {files.model}: {error}") from error
            if getattr(model.config, "is_encoder_decoder", False):
                raise ConfigError(
                    f"the encoder {files.model} ({model.config.model_type}) also has a decoder. "
                    "Choose an encoder-only or decoder-only model"
                )
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu"))

    def last_states(
        self, sequences: Sequence[Tokens], batch_tokens: int
    ) -> Iterator[Mapping[Tokens, Vector]]:
        """Yields the state of each sequence's last token after the last norm, batch by batch.

        Args:
            sequences: Distinct sequences, none of them empty.
            batch_tokens: Token limit per batch; a tree counts shared tokens once. A longer sequence
                gets a batch of its own.

        Yields:
            Vectors by sequence, all of the same length.
        """
        states, batches = _padded_states, _by_length(sequences, batch_tokens)
        if self.reads_trees:
            states = _tree_states
            batches = prefix_batches(sequences, batch_tokens, tokens_of=lambda tokens: tokens)
        for batch in batches:
            vectors = states(self._model, batch).float().cpu().numpy()
            yield dict(zip(batch, vectors, strict=True))


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
            batch_tokens: Token limit per batch (see `Backbone.last_states`).
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


def _is_causal(model: Any) -> bool:
    """Tests whether later tokens leave earlier states unchanged.

    This needs a test, because model configurations do not contain the answer.
    """
    import torch

    ids = torch.tensor([[1, 2, 3], [1, 2, 4]], device=model.device)
    with torch.no_grad():
        first, second = model(input_ids=ids).last_hidden_state[:, :2]
    return bool(torch.allclose(first, second, atol=1e-5))


def _tree_states(model: Any, batch: Sequence[Tokens]) -> Any:
    """Returns the states, shape (len(batch), width), from one tree."""
    import torch

    tree, device = prefix_tree(batch), model.device
    arrays = (torch.tensor([x], device=device) for x in (tree.tokens, tree.positions, tree.ends))
    with torch.no_grad():
        states = model(**tree_inputs(model, *arrays)).last_hidden_state
    return states[0, [path[-1] for path in tree.paths]]


def _padded_states(model: Any, batch: Sequence[Tokens]) -> Any:
    """Returns the states, shape (len(batch), width), from a batch padded on the right."""
    import torch

    longest, pad = max(map(len, batch)), model.config.pad_token_id or 0
    ids = torch.tensor([[*tokens, *[pad] * (longest - len(tokens))] for tokens in batch])
    mask = torch.tensor([[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in batch])
    with torch.no_grad():
        states = model(
            input_ids=ids.to(model.device), attention_mask=mask.to(model.device)
        ).last_hidden_state
    return states[torch.arange(len(batch)), [len(tokens) - 1 for tokens in batch]]


def _by_length(sequences: Sequence[Tokens], most: int) -> Iterator[list[Tokens]]:
    """Yields batches of similar lengths, which need little padding."""
    batch: list[Tokens] = []
    for tokens in sorted(sequences, key=lambda tokens: (len(tokens), tokens)):
        if batch and (len(batch) + 1) * len(tokens) > most:
            yield batch
            batch = []
        batch.append(tokens)
    if batch:
        yield batch
