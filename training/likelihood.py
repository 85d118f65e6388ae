"""How likely a policy finds steps, without training on them."""

from collections.abc import Iterator, Sequence
from typing import Any

from training.packing import StepTokens, packed_batch, padded_batch
from weights.prefix_tree import common_prefix

_MOST_TOKENS = 2048
"""Tokens of a batch, what its rows share counted once."""


def step_logps(
    trainer: Any, rows: Sequence[StepTokens], *, packed: bool
) -> dict[StepTokens, float]:
    """Log-probability of each step after its prompt, in nats, summed over the step's tokens.

    Args:
        trainer: one of TRL's, with its fused output layer; its model is asked as it is.
        rows: equal ones are computed once.
        packed: whether the model reads packed batches.
    """
    import torch

    collate = packed_batch if packed else padded_batch
    found: dict[StepTokens, float] = {}
    for some in _batches(sorted(set(rows)), packed):
        batch = {
            name: tensor.to(trainer.accelerator.device)
            for name, tensor in collate(some, trainer.processing_class.pad_token_id).items()
        }
        labels = batch["input_ids"].masked_fill(batch.pop("completion_mask") == 0, -100)
        with torch.no_grad(), trainer.accelerator.autocast():
            output = trainer.model(**batch, labels=labels, fused_lm_head=True, use_cache=False)
        found |= zip(some, output.log_probs.float().sum(dim=1).tolist(), strict=True)
    return found


def _batches(rows: Sequence[StepTokens], packed: bool) -> Iterator[list[StepTokens]]:
    """Neighbours in order, so that what rows share is read once."""
    batch: list[StepTokens] = []
    tokens = 0
    for row in rows:
        new = len(row.prompt) + len(row.step)
        if batch and packed:
            new -= common_prefix(batch[-1].prompt, row.prompt)
        if batch and tokens + new > _MOST_TOKENS:
            yield batch
            batch, tokens = [], 0
            new = len(row.prompt) + len(row.step)
        batch.append(row)
        tokens += new
    if batch:
        yield batch
