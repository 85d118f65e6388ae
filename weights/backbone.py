"""A frozen model without its output layer, which returns the last states of sequences.

A decoder reads many sequences as one tree (`weights.tree_attention`), so it reads shared prefixes
only once. In an encoder, tokens also attend to later tokens, so it reads a padded batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from base.errors import ConfigError
from weights.policy_files import PolicyFiles, load_policy
from weights.prefix_tree import prefix_batches, prefix_tree
from weights.pretrained import pretrained
from weights.tree_attention import enable_tree_attention, tree_attention_blocker, tree_inputs

Tokens = tuple[int, ...]
Vector = NDArray[np.float32]


class Backbone:
    """A frozen model (see module).

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
            model = _load_encoder(files)
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


def _load_encoder(files: PolicyFiles) -> Any:
    import torch

    try:
        model = pretrained("AutoModel", files.base, dtype=torch.float32)
    except ConfigError as error:
        raise ConfigError(f"cannot load the encoder {files.model}: {error}") from error
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(
            f"the encoder {files.model} ({model.config.model_type}) also has a decoder. Choose an "
            "encoder-only or decoder-only model"
        )
    return model


def _is_causal(model: Any) -> bool:
    """Tests whether later tokens leave earlier states unchanged.

    This needs a test, because model configurations do not contain the answer.
    """
    import torch

    ids = torch.tensor([[1, 2, 3], [1, 2, 4]], device=model.device)
    with torch.no_grad():
        one, other = model(input_ids=ids).last_hidden_state[:, :2]
    return bool(torch.allclose(one, other, atol=1e-5))


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
