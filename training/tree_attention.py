"""Lets a model read packed batches: each shared beginning once, siblings apart.

The model's backbone runs on the tree of a batch (`training.packing`) with tree attention
(`weights.tree_attention`). Its output is then spread to the rows that the trainer expects. So the
trainer computes losses, metrics and reference passes as usual, with the same results as on whole
sequences, within float error.
"""

from typing import Any

from base.errors import ConfigError
from weights.tree_attention import enable_tree_attention, tree_attention_blocker, tree_inputs


def enable_packed_forward(model: Any) -> None:
    """Makes a causal `model` of transformers also read packed batches; others it reads as before.

    If the model has an attention that can skip the tree's masked blocks, it uses that
    (`weights.tree_attention`).

    Raises:
        ConfigError: If its layers see less than their whole past, or it does not take positions.
    """
    why = tree_attention_blocker(model)
    if why:
        raise ConfigError(
            f"this model ({model.config.model_type}) {why}, so prompts cannot be shared; "
            "set training.packed: false"
        )
    enable_tree_attention(model)
    backbone = model.base_model
    # As TRL does with its output layer; hooks would have to remember the rows in between.
    backbone.forward = _tree_forward(backbone, backbone.forward)


def _tree_forward(backbone: Any, forward: Any) -> Any:
    from torch.nn.functional import embedding

    def tree_forward(*args: Any, **kwargs: Any) -> Any:
        if "tree_tokens" not in kwargs:
            return forward(*args, **kwargs)
        tokens, positions, ends, rows = (
            kwargs.pop(f"tree_{name}") for name in ("tokens", "positions", "ends", "rows")
        )
        kwargs |= tree_inputs(backbone, tokens, positions, ends)
        output = forward(*args, **kwargs)
        # The backward pass of indexing adds up in an order that depends on threads.
        output.last_hidden_state = embedding(rows, output.last_hidden_state[0])
        return output

    return tree_forward
