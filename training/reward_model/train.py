"""Trains a reward model: a frozen encoder reads steps once, and linear heads learn on the result.

Source: EVO-RAG section 3.3, L = −(1/7) Σ_k log σ(f_k(x+) − f_k(x−)). Here each head has its own
sides x+ and x− (`training.reward_model.comparisons.orders`) and its own pairs, and the reported
mean is over the heads that have pairs. Training minimises the sum. Heads share no parameters, so
with a sum each learns the same with or without the others; with a mean, every step would depend on
the number of heads that have a pair in it.

Writes a folder that `rewards.reward_model.model` loads:

    heads.safetensors    the heads, with the standardisation of their inputs and outputs
    metrics.json         each head on the validation questions, with a length-only baseline
    training.json        encoder, settings, seed and data, by digest; written last
"""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from branchwise.base import ConfigError, Log, atomic_write_json, digest_of_many
from branchwise.modeling import FrozenEncoder, Prefix
from branchwise.rewards import HEADS, KIND, Array, Heads, RewardScheme, stored_encoder
from branchwise.weights import TRAINING_RECORD

from ..examples import filter_by_length
from ..settings import RewardModelSettings
from .comparisons import SiblingComparison, head_names, orders, places, split_questions
from .metrics import ModelMetrics, Steps, measure

METRICS = "metrics.json"
BATCH_SIZE = 64
"""Pairs per step."""


class NothingToLearn(ConfigError):
    """Raised if no pair orders any head."""


@dataclass(frozen=True)
class RewardTrainingData:
    """Training data of a reward model.

    Attributes:
        steps: Distinct steps, each after its prompt.
        comparisons: Comparisons of siblings, by index into `steps`.
        scheme: Reward scheme that labelled them.
    """

    steps: Sequence[Prefix]
    comparisons: Sequence[SiblingComparison]
    scheme: RewardScheme

    @property
    def digest(self) -> str:
        """Hash of all steps and comparisons, in their order."""
        steps = (json.dumps([[m.content for m in s.messages], s.text]) for s in self.steps)
        return digest_of_many([*steps, *map(repr, self.comparisons)])


@dataclass(frozen=True)
class RewardModelReport:
    """Result of a training.

    Attributes:
        trained, validation: Number of training and of validation pairs.
        dropped: Number of pairs with a step that was too long.
        seconds: Seconds of training the heads, without encoding.
    """

    metrics: ModelMetrics
    trained: int
    validation: int
    dropped: int
    questions: int
    validation_questions: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `metrics.json`."""
        pairs = {"trained": self.trained, "validation": self.validation, "dropped": self.dropped}
        questions = {"trained": self.questions, "validation": self.validation_questions}
        return {"pairs": pairs, "questions": questions, **self.metrics.as_json()}


def train_reward_model(
    material: RewardTrainingData,
    settings: RewardModelSettings,
    *,
    max_dropped_share: float,
    encoder: FrozenEncoder,
    target: Path,
    seed: int,
    log: Log,
    data: Mapping[str, Any] | None = None,
) -> RewardModelReport:
    """Trains heads on `encoder` and writes them to `target`.

    Args:
        material: Steps and comparisons.
        settings: See `training.settings.RewardModelSettings`.
        max_dropped_share: See `training.settings.TrainingSettings`.
        encoder: Encoder of the steps; it is not trained.
        target: Folder for the files named above.
        seed: Random seed of the order of the pairs.
        log: Callback for progress messages.
        data: Origin of the comparisons, as JSON; written to `training.json`.

    Raises:
        NothingToLearn: If no pair is left.
        ConfigError: If too many steps are too long.
        StorageError: If the cache or the target cannot be written.
    """
    fitting, vectors = _embedded(material, settings, max_dropped_share, encoder, log)
    trained, validation = split_questions(fitting, settings.validation, settings.split_seed)
    if not trained:
        raise NothingToLearn(
            f"no pair is left to train a reward model on, of {len(material.comparisons)}: lower "
            "training.reward_model.min_gap or validation, or annotate more questions"
        )
    began = time.monotonic()
    heads = fit_heads(vectors, trained, settings, seed)
    seconds = time.monotonic() - began
    report = RewardModelReport(
        metrics=measure(heads, _steps(material, vectors), trained, validation, settings),
        trained=len(trained),
        validation=len(validation),
        dropped=len(material.comparisons) - len(fitting),
        questions=len({c.question_id for c in trained}),
        validation_questions=len({c.question_id for c in validation}),
        seconds=round(seconds, 2),
    )
    record = {
        "kind": KIND,
        "encoder": stored_encoder(target, encoder.model),
        "encoder_digest": encoder.digest,
        "settings": settings.model_dump(mode="json"),
        "rewards": material.scheme.resolved.model_dump(mode="json"),
        "seed": seed,
        "data": data,
        "data_digest": material.digest,
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "python": platform.python_version(),
        "heads_digest": heads.digest,
        "seconds": report.seconds,
    }
    heads.save(target / HEADS)
    atomic_write_json(target / METRICS, report.as_json())
    atomic_write_json(target / TRAINING_RECORD, record)  # last, because it identifies the heads
    return report


def _embedded(
    material: RewardTrainingData,
    settings: RewardModelSettings,
    max_dropped_share: float,
    encoder: FrozenEncoder,
    log: Log,
) -> tuple[list[SiblingComparison], Any]:
    """Returns the comparisons whose steps fit, and all steps as vectors, (n, d).

    Unused steps and steps that are too long get zero vectors, which are never read.
    """
    if not material.comparisons:
        return [], np.zeros((0, 0), np.float32)
    tokens = encoder.tokens(material.steps)
    fit, lengths = filter_by_length(list(map(len, tokens)), settings.max_length, max_dropped_share)
    log(f"{KIND}: steps with their prompts: {lengths}")
    fits = set(fit)
    fitting = [c for c in material.comparisons if {c.better, c.worse} <= fits]
    used = sorted({place for c in fitting for place in (c.better, c.worse)})
    if not used:
        return [], np.zeros((0, 0), np.float32)
    embedded = encoder.embed_cached([tokens[place] for place in used])
    vectors = np.zeros((len(tokens), embedded.shape[1]), np.float32)
    vectors[used] = embedded
    return fitting, vectors


def _steps(material: RewardTrainingData, vectors: Any) -> Steps:
    lengths = np.array([len(step.text) for step in material.steps], np.int64)
    times = {comparison.t for comparison in material.comparisons}
    return Steps(vectors, lengths, {t: material.scheme.weights(t) for t in times})


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
    order = torch.Generator().manual_seed(seed)
    batches = [  # each pair once per epoch
        batch
        for _ in range(settings.epochs)
        for batch in torch.split(torch.randperm(len(comparisons), generator=order), BATCH_SIZE)
    ]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / len(batches))
    for batch in batches:
        margins = (inputs[better[batch]] - inputs[worse[batch]]) @ weight.T
        optimiser.zero_grad()
        head_losses(margins, torch.from_numpy(signs)[batch]).sum().backward()
        optimiser.step()
        schedule.step()
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

    is_ordered = signs.abs()
    return (softplus(-signs * margins) * is_ordered).sum(0) / is_ordered.sum(0).clamp(min=1)


def _mean_and_sd(values: Array) -> tuple[Array, Array]:
    """Returns mean and deviation of each column; 1 if a column does not vary."""
    exact = values.astype(np.float64)
    mean, sd = exact.mean(axis=0), exact.std(axis=0)
    return mean.astype(np.float32), np.where(sd > 1e-8, sd, 1.0).astype(np.float32)
