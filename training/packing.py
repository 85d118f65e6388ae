"""Batches of policy steps: side by side with their whole prompts, or packed into one tree.

Both have the shape that TRL's trainers read: `input_ids`, `attention_mask` and `completion_mask`.
A packed row has only the last token of the prompt and the step. The prompts are in further keys,
once for all rows:

    tree_tokens, tree_positions, tree_ends   (1, N), see `weights.prefix_tree`
    tree_rows                                (rows, 1 + longest step): index of each entry's token

A step's last token predicts nothing, so the tree leaves it out. Its entry, like padding, has the
index of the first token, and no loss reads it.

The model's backbone runs on the tree with tree attention (`weights.tree_attention`). Its output is
then spread to the rows that the trainer expects, which computes losses, metrics and reference
passes as usual, with the same results as on whole sequences, within float error.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from base.errors import ConfigError
from weights.prefix_tree import prefix_tree
from weights.tree_attention import enable_tree_attention, tree_attention_blocker, tree_inputs

IGNORED = -100
"""Label of a token without a loss (PyTorch's convention)."""


class StepTokens(NamedTuple):
    """One step as token ids: prompt and policy text, both non-empty; only the text has a loss."""

    prompt: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        """The prompt, then the step."""
        return self.prompt + self.step


def pad_id(tokenizer: Any) -> int:
    """Returns the token id that fills batches, which no loss reads: the end of turn if it has none
    for padding.
    """
    pad = tokenizer.pad_token_id
    return int(tokenizer.eos_token_id if pad is None else pad)


def batch_of(rows: Sequence[StepTokens], tokenizer: Any, *, packed: bool) -> dict[str, Any]:
    """Returns the rows as a packed or as a padded batch."""
    return (packed_batch if packed else padded_batch)(rows, pad_id(tokenizer))


def padded_batch(rows: Sequence[StepTokens], pad: int) -> dict[str, Any]:
    """Returns the rows in full, padded on the right: tensors of shape (rows, longest)."""
    whole = [list(row.whole) for row in rows]
    starts = [len(row.prompt) for row in rows]
    return _side_by_side(whole, starts, pad)


def packed_batch(rows: Sequence[StepTokens], pad: int) -> dict[str, Any]:
    """Returns the rows as their steps, and one tree of their prefixes (see module)."""
    #   prompt p0 p1 p2, step s0 s1 s2
    #   tree holds    p0 p1 p2 s0 s1          s2 predicts nothing, so the tree omits it
    #   input_ids           p2 s0 s1 s2       completion_mask  0 1 1 1
    #   tree_rows            2  3  4  0       hidden state at p2 predicts s0, ..., 0 is padding
    import torch

    tree = prefix_tree([(*row.prompt, *row.step[:-1]) for row in rows])
    batch = _side_by_side([[row.prompt[-1], *row.step] for row in rows], [1] * len(rows), pad)
    longest = batch["input_ids"].shape[1]
    places = [path[len(row.prompt) - 1 :] for row, path in zip(rows, tree.paths, strict=True)]
    return batch | {
        "tree_tokens": torch.tensor([tree.tokens]),
        "tree_positions": torch.tensor([tree.positions]),
        "tree_ends": torch.tensor([tree.ends]),
        "tree_rows": torch.tensor([_filled(place, longest, 0) for place in places]),
    }


def _side_by_side(
    sequences: Sequence[list[int]], starts: Sequence[int], pad: int
) -> dict[str, Any]:
    import torch

    longest = max(map(len, sequences))
    said = [
        [0] * start + [1] * (len(sequence) - start)
        for sequence, start in zip(sequences, starts, strict=True)
    ]
    return {
        "input_ids": torch.tensor([_filled(s, longest, pad) for s in sequences]),
        "attention_mask": torch.tensor([_filled([1] * len(s), longest, 0) for s in sequences]),
        "completion_mask": torch.tensor([_filled(s, longest, 0) for s in said]),
    }


def _filled(values: list[int], length: int, filler: int) -> list[int]:
    return values + [filler] * (length - len(values))


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
