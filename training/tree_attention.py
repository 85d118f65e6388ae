"""A model that reads packed batches: each shared beginning once, siblings apart.

The model's backbone runs on the tree of a batch (`training.packing`) with the positions that the
tokens have in their own sequences, and with a mask by which each token sees its own past alone.
Its output is then spread to the rows that the trainer asked for. So losses, metrics and reference
passes stay the trainer's, and results are those of the whole sequences within float error.
"""

import inspect
from typing import Any

from storage.errors import ConfigError

_BLOCK = 128
"""Tokens that FlexAttention handles at a time."""


def read_packed(model: Any, block: str) -> None:
    """Make a causal `model` of transformers read packed batches too; others it reads as before.

    On a GPU its attention becomes FlexAttention, where it has it: the mask is then never written
    out, and blocks that it closes are skipped.

    Args:
        block: the recipe's block of the training ("dpo"), for the refusal.

    Raises:
        ConfigError: its layers see less than their whole past, or it takes no positions.
    """
    import torch

    _refuse_unfit(model, block)
    if torch.cuda.is_available() and getattr(model, "_supports_flex_attn", False):
        model.set_attn_implementation("flex_attention")
    backbone = model.base_model
    # As TRL does with its output layer; hooks would have to remember the rows in between.
    backbone.forward = _tree_forward(backbone, backbone.forward)


def _refuse_unfit(model: Any, block: str) -> None:
    config, takes = model.config, inspect.signature(type(model.base_model).forward).parameters
    window = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    layers = getattr(config, "layer_types", None) or [window]
    why = None
    if set(layers) != {"full_attention"} or getattr(config, "alibi", False):
        why = "has layers that are no full attention over positions"
    elif "position_ids" not in takes:
        why = "takes no position_ids"
    elif config._attn_implementation not in ("sdpa", "eager", "flex_attention"):
        why = f"runs with {config._attn_implementation}, which takes no mask"
    if why:
        raise ConfigError(
            f"this model ({config.model_type}) {why}, so prompts cannot be shared; "
            f"set training.{block}.packed: false"
        )


def _tree_forward(backbone: Any, forward: Any) -> Any:
    def tree_forward(*args: Any, **kwargs: Any) -> Any:
        if "tree_tokens" not in kwargs:
            return forward(*args, **kwargs)
        tokens, positions, ends, rows = (
            kwargs.pop(f"tree_{name}") for name in ("tokens", "positions", "ends", "rows")
        )
        how = backbone.config._attn_implementation
        if how == "flex_attention":
            tokens, positions, ends = _whole_blocks(tokens, positions, ends)
        kwargs |= {
            "input_ids": tokens,
            "position_ids": positions,
            "attention_mask": tree_mask(ends[0], how, backbone.dtype),
        }
        output = forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state[0, rows]
        return output

    return tree_forward


def tree_mask(ends: Any, how: str, dtype: Any) -> Any:
    """Which token sees which, in the form that an attention of transformers takes.

    Args:
        ends: (N,) of a `PrefixTree`.
        how: "sdpa" (Boolean), "eager" (added to the scores) or "flex_attention".
        dtype: of the model.
    """
    import torch

    if how == "flex_attention":
        return _block_mask(ends)
    token = torch.arange(len(ends), device=ends.device)
    sees = ((token <= token[:, None]) & (token[:, None] < ends))[None, None]
    if how == "sdpa":
        return sees
    return torch.zeros_like(sees, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)


def _block_mask(ends: Any) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[key])

    return create_block_mask(sees, None, None, len(ends), len(ends), device=str(ends.device))


def _whole_blocks(tokens: Any, positions: Any, ends: Any) -> tuple[Any, Any, Any]:
    """The tree with tokens at its end that only see themselves, up to a whole block."""
    import torch

    n = tokens.shape[1]
    more = -n % _BLOCK
    alone = torch.arange(n + 1, n + more + 1, device=ends.device)[None]
    nothing = tokens.new_zeros(1, more)
    return (
        torch.cat([tokens, nothing], 1),
        torch.cat([positions, nothing], 1),
        torch.cat([ends, alone], 1),
    )
