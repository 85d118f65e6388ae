"""Trains the heads of a reward model: pairwise logistic loss on frozen vectors.

Source: EVO-RAG section 3.3, L = −(1/7) Σ_k log σ(f_k(x+) − f_k(x−)). Here each head has its own
sides x+ and x− (`training.reward_model.comparisons.orders`) and its own pairs, and the reported
mean is over the heads that have pairs. Training minimises the sum. Heads share no parameters, so
with a sum each learns the same with or without the others; with a mean, every step would depend on
the number of heads that have a pair in it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from base.errors import ConfigError
from rewards.reward_model.heads import Array, Heads
from training.reward_model.comparisons import SiblingComparison, head_names, orders, places
from training.settings import RewardModelSettings

BATCH_SIZE = 64
"""Pairs per step."""


def fit_heads(
    vectors: Array,
    comparisons: Sequence[SiblingComparison],
    settings: RewardModelSettings,
    seed: int,
) -> Heads:
    """Trains all heads, in float32 on the CPU; the same arguments give the same bits.

    Args:
        vectors: Embeddings of the steps that the comparisons index, (steps, d).
        comparisons: Training comparisons, at least one.
        settings: Heads, labels and optimiser.
        seed: Random seed of the order of the pairs; weights begin at 0.

    Raises:
        ConfigError: If no comparison teaches any head.
    """
    import torch

    signs = orders(comparisons, settings)
    if not signs.any():
        raise ConfigError(
            f"none of {len(comparisons)} pairs orders any head, because all labels are ties "
            "or unknown; grow more trees, or lower training.reward_model.min_gap"
        )
    sides = places(comparisons)
    used = np.unique(np.concatenate(sides))
    better, worse = map(torch.from_numpy, sides)
    mean, sd = _mean_and_sd(vectors[used])
    inputs = torch.from_numpy((vectors - mean) / sd)
    weight = torch.zeros(signs.shape[1], vectors.shape[1], requires_grad=True)
    optimiser = torch.optim.AdamW([weight], settings.lr, weight_decay=0.01)
    batches = list(_batches(len(comparisons), settings, seed))
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / len(batches))
    for batch in batches:
        margins = (inputs[better[batch]] - inputs[worse[batch]]) @ weight.T
        optimiser.zero_grad()
        head_losses(margins, torch.from_numpy(signs)[batch]).sum().backward()
        optimiser.step()
        falling.step()
    learned = weight.detach().numpy()
    output_mean, output_sd = _mean_and_sd(inputs[used].numpy() @ learned.T)
    return Heads(
        names=head_names(settings),
        learned="total" if settings.heads == "single" else settings.labels,
        weight=learned,
        mean=mean,
        sd=sd,
        output_mean=output_mean,
        output_sd=output_sd,
    )


def head_losses(margins: Any, signs: Any) -> Any:
    """Returns each head's mean of −log σ(f(x+) − f(x−)) over its own pairs: (K,); 0 without pairs.

    Args:
        margins: f_k of the better side minus that of the worse one, (n, K).
        signs: Result of `training.reward_model.comparisons.orders`, (n, K).
    """
    from torch.nn.functional import softplus

    said = signs.abs()
    return (softplus(-signs * margins) * said).sum(0) / said.sum(0).clamp(min=1)


def _batches(n: int, settings: RewardModelSettings, seed: int) -> Iterator[Any]:
    """Yields the indices of the pairs of each step, each pair once per epoch."""
    import torch

    order = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        shuffled = torch.randperm(n, generator=order)
        for start in range(0, n, BATCH_SIZE):
            yield shuffled[start : start + BATCH_SIZE]


def _mean_and_sd(values: Array) -> tuple[Array, Array]:
    """Returns mean and deviation of each column; 1 if a column does not vary."""
    exact = values.astype(np.float64)
    mean, sd = exact.mean(axis=0), exact.std(axis=0)
    return mean.astype(np.float32), np.where(sd > 1e-8, sd, 1.0).astype(np.float32)
