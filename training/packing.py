"""Batches of policy steps, and the log-probabilities of steps under a policy.

A batch has its steps side by side with their whole prompts, or packed into one tree.

Both have the shape that TRL's trainers read: `input_ids`, `attention_mask` and `completion_mask`.
A packed row has only the last token of the prompt and the step. The prompts are in further keys,
once for all rows:

    tree_tokens, tree_positions, tree_ends   (1, N), see `modeling.token_tree`
    tree_rows                                (rows, 1 + longest step): index of each entry's token

A step's last token predicts nothing, so the tree leaves it out. Its entry, like padding, has the
index of the first token, and no loss reads it.

The model's backbone runs on the tree with tree attention (`modeling.tree_attention`). Its output is
then spread to the rows that the trainer expects, which computes losses, metrics and reference
passes as usual, with the same results as on whole sequences, within float error.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from branchwise.base import ConfigError
from branchwise.modeling import (
    common_prefix,
    enable_tree_attention,
    prefix_batches,
    prefix_tree,
    tree_attention_blocker,
    tree_inputs,
)

IGNORED = -100
"""Label of a token without a loss (PyTorch's convention)."""

_MOST_TOKENS = 2048
"""Tokens of a batch of `step_logps`; shared prefixes count once."""


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


def padded_batch(rows: Sequence[StepTokens], pad: int, side: str = "right") -> dict[str, Any]:
    """Returns the rows in full, padded on a side: tensors of shape (rows, longest)."""
    masks = [[0] * len(row.prompt) + [1] * len(row.step) for row in rows]
    return {
        "input_ids": padded([row.whole for row in rows], pad, side),
        "attention_mask": padded([[1] * len(mask) for mask in masks], 0, side),
        "completion_mask": padded(masks, 0, side),
    }


def packed_batch(rows: Sequence[StepTokens], pad: int) -> dict[str, Any]:
    """Returns the rows as their steps, and one tree of their prefixes (see module)."""
    #   prompt p0 p1 p2, step s0 s1 s2
    #   tree holds    p0 p1 p2 s0 s1          s2 predicts nothing, so the tree omits it
    #   input_ids           p2 s0 s1 s2       completion_mask  0 1 1 1
    #   tree_rows            2  3  4  0       hidden state at p2 predicts s0, ..., 0 is padding
    import torch

    tree = prefix_tree([(*row.prompt, *row.step[:-1]) for row in rows])
    places = [path[len(row.prompt) - 1 :] for row, path in zip(rows, tree.paths, strict=True)]
    return padded_batch([StepTokens(row.prompt[-1:], row.step) for row in rows], pad) | {
        "tree_tokens": torch.tensor([tree.tokens]),
        "tree_positions": torch.tensor([tree.positions]),
        "tree_ends": torch.tensor([tree.ends]),
        "tree_rows": padded([[*place, 0] for place in places], 0),
    }


def labelled(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns a batch with `labels` (token ids of the steps, else `IGNORED`) for its mask."""
    unlearned = batch.pop("completion_mask") == 0
    return batch | {"labels": batch["input_ids"].masked_fill(unlearned, IGNORED)}


def padded(rows: Iterable[Sequence[int]], filler: int, side: str = "right") -> Any:
    """Returns rows as one tensor of shape (rows, longest), filled up on a side."""
    import torch

    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, True, filler, side)


def enable_packed_forward(model: Any) -> None:
    """Makes a causal `model` of transformers also read packed batches; others it reads as before.

    If the model has an attention that can skip the tree's masked blocks, it uses that
    (`modeling.tree_attention`).

    Raises:
        ConfigError: If its layers see less than their whole past, or it does not take positions.
    """
    blocker = tree_attention_blocker(model)
    if blocker:
        raise ConfigError(
            f"this model ({model.config.model_type}) {blocker}, so prompts cannot be shared; "
            "set training.packed: false"
        )
    from torch.nn.functional import embedding

    enable_tree_attention(model)
    backbone = model.base_model
    forward = backbone.forward

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

    # As TRL does with its output layer; hooks would have to remember the rows in between.
    backbone.forward = tree_forward


def step_logps(trainer: Any, rows: Iterable[StepTokens]) -> dict[StepTokens, float]:
    """Returns the log-probability of each step after its prompt: nats, summed over its tokens.

    Args:
        trainer: Trainer whose model has TRL's fused output layer; its attribute `packed` shows
            whether the model reads packed batches.
        rows: Steps; equal ones are computed once.
    """
    return {row: sum(logps) for row, logps in token_logps(trainer, rows).items()}


def token_logps(trainer: Any, rows: Iterable[StepTokens]) -> dict[StepTokens, tuple[float, ...]]:
    """Returns the log-probability of each token of each step, in nats; see `step_logps`."""
    import torch

    logps: dict[StepTokens, tuple[float, ...]] = {}
    for batch in prefix_batches(
        set(rows), _MOST_TOKENS, tokens_of=lambda row: row.whole, shared=trainer.packed
    ):
        with torch.no_grad(), trainer.accelerator.autocast():
            sampled, output = read_steps(trainer, trainer.model, batch)
        for row, row_logps, mask in zip(batch, output.log_probs.float(), sampled, strict=True):
            logps[row] = tuple(row_logps[mask].tolist())
    return logps


def read_steps(trainer: Any, model: Any, rows: Sequence[StepTokens]) -> tuple[Any, Any]:
    """Runs `model` of a trainer (see `step_logps`) on a batch of steps.

    Returns:
        A mask of shape (rows, longest) over the output's entries that are tokens of a step, and
        the output, whose `log_probs` have that shape.
    """
    device = trainer.accelerator.device
    batch = labelled(batch_of(rows, trainer.processing_class, packed=trainer.packed))
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    output = model(**batch, fused_lm_head=True, use_cache=False)
    return batch["labels"][:, 1:] != IGNORED, output


def tokens_read(rows: Iterable[StepTokens], *, packed: bool) -> int:
    """Returns the number of tokens in a batch; if packed, shared prefixes count once."""
    wholes = sorted(row.whole for row in rows)
    shared = sum(map(common_prefix, wholes, wholes[1:])) if packed else 0
    return sum(map(len, wholes)) - shared
