"""Computes log-probabilities of steps under a policy, without training on them."""

from collections.abc import Iterable, Sequence
from typing import Any

from training.packing import IGNORED, StepTokens, packed_batch, pad_id, padded_batch
from weights.prefix_tree import common_prefix, prefix_batches

_MOST_TOKENS = 2048
"""Tokens of a batch; shared prefixes count once."""


def step_logps(
    trainer: Any, rows: Sequence[StepTokens], *, packed: bool
) -> dict[StepTokens, float]:
    """Returns the log-probability of each step after its prompt: nats, summed over its tokens.

    Args:
        trainer: TRL trainer with its fused output layer.
        rows: Steps; equal ones are computed once.
        packed: Whether the model reads packed batches.
    """
    return {row: sum(logps) for row, logps in token_logps(trainer, rows, packed=packed).items()}


def token_logps(
    trainer: Any, rows: Iterable[StepTokens], *, packed: bool
) -> dict[StepTokens, tuple[float, ...]]:
    """Returns the log-probability of each token of each step, in nats; see `step_logps`."""
    import torch

    found: dict[StepTokens, tuple[float, ...]] = {}
    for some in prefix_batches(
        set(rows), _MOST_TOKENS, tokens_of=lambda row: row.whole, shared=packed
    ):
        with torch.no_grad(), trainer.accelerator.autocast():
            said, output = read_steps(trainer, trainer.model, some, packed=packed)
        logps = output.log_probs.float()
        for row, own, mask in zip(some, logps, said, strict=True):
            found[row] = tuple(own[mask].tolist())
    return found


def read_steps(
    trainer: Any, model: Any, rows: Sequence[StepTokens], *, packed: bool
) -> tuple[Any, Any]:
    """Runs `model`, which has TRL's fused output layer, on a batch of steps.

    Returns:
        A mask of shape (rows, longest) over the output's entries that are tokens of a step, and
        the output, whose `log_probs` have that shape.
    """
    collate = packed_batch if packed else padded_batch
    batch = {
        name: tensor.to(trainer.accelerator.device)
        for name, tensor in collate(rows, pad_id(trainer.processing_class)).items()
    }
    said = batch.pop("completion_mask") == 1
    labels = batch["input_ids"].masked_fill(~said, IGNORED)
    output = model(**batch, labels=labels, fused_lm_head=True, use_cache=False)
    return said[:, 1:], output


def tokens_read(rows: Iterable[StepTokens], *, packed: bool) -> int:
    """Returns the number of tokens in a batch; if packed, shared prefixes count once."""
    wholes = sorted(row.whole for row in rows)
    shared = sum(map(common_prefix, wholes, wholes[1:])) if packed else 0
    return sum(map(len, wholes)) - shared
