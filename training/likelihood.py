"""Computes log-probabilities of steps under a policy, without training on them."""

from collections.abc import Iterable, Sequence
from typing import Any

from training.packing import IGNORED, StepTokens, batch_of
from weights.prefix_tree import common_prefix, prefix_batches

_MOST_TOKENS = 2048
"""Tokens of a batch; shared prefixes count once."""


def step_logps(trainer: Any, rows: Iterable[StepTokens]) -> dict[StepTokens, float]:
    """Returns the log-probability of each step after its prompt: nats, summed over its tokens.

    Args:
        trainer: Trainer whose model has TRL's fused output layer; its attribute `packed` tells
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
    batch = batch_of(rows, trainer.processing_class, packed=trainer.packed)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    sampled = batch.pop("completion_mask") == 1
    labels = batch["input_ids"].masked_fill(~sampled, IGNORED)
    output = model(**batch, labels=labels, fused_lm_head=True, use_cache=False)
    return sampled[:, 1:], output


def tokens_read(rows: Iterable[StepTokens], *, packed: bool) -> int:
    """Returns the number of tokens in a batch; if packed, shared prefixes count once."""
    wholes = sorted(row.whole for row in rows)
    shared = sum(map(common_prefix, wholes, wholes[1:])) if packed else 0
    return sum(map(len, wholes)) - shared
