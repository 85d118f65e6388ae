"""Trains a reward model: a frozen encoder reads steps once, and linear heads learn on the result.

Source: EVO-RAG section 3.3. Writes a folder that `rewards.reward_model.model` loads:

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

from base.atomic import atomic_write_json
from base.errors import ConfigError
from base.text import Log, digest_of_many
from rewards.reward_model.heads import Heads
from rewards.reward_model.model import HEADS, KIND, stored_encoder
from rewards.scheme import RewardScheme
from training.examples import filter_by_length
from training.reward_model.comparisons import SiblingComparison, split_questions
from training.reward_model.heads import fit_heads
from training.reward_model.metrics import ModelMetrics, Steps, measure
from training.settings import RewardModelSettings
from weights.embedding import FrozenEncoder, Prefix
from weights.model_folders import TRAINING_RECORD

METRICS = "metrics.json"


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
        trained, kept: Number of training and of validation pairs.
        dropped: Number of pairs with a step that was too long.
        seconds: Seconds of training the heads, without encoding.
    """

    metrics: ModelMetrics
    trained: int
    kept: int
    dropped: int
    questions: int
    validation_questions: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `metrics.json`."""
        pairs = {"trained": self.trained, "validation": self.kept, "dropped": self.dropped}
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
    trained, kept = split_questions(fitting, settings.validation, settings.split_seed)
    if not trained:
        raise NothingToLearn(
            f"no pair is left to train a reward model on, of {len(material.comparisons)}: lower "
            "training.reward_model.min_gap or validation, or annotate more questions"
        )
    began = time.monotonic()
    heads = fit_heads(vectors, trained, settings, seed)
    seconds = time.monotonic() - began
    report = RewardModelReport(
        metrics=measure(heads, _steps(material, vectors), trained, kept, settings),
        trained=len(trained),
        kept=len(kept),
        dropped=len(material.comparisons) - len(fitting),
        questions=len({one.question_id for one in trained}),
        validation_questions=len({one.question_id for one in kept}),
        seconds=round(seconds, 2),
    )
    _write(target, heads, report, _record(material, settings, encoder, target, seed, data))
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
    every = [len(one) for one in tokens]
    fit, lengths = filter_by_length(every, settings.max_length, max_dropped_share)
    log(f"{KIND}: steps with their prompts: {lengths}")
    fits = frozenset(fit)
    fitting = [one for one in material.comparisons if {one.better, one.worse} <= fits]
    wanted = sorted({place for one in fitting for place in (one.better, one.worse)})
    if not wanted:
        return [], np.zeros((0, 0), np.float32)
    read = encoder.embed_cached([tokens[place] for place in wanted])
    vectors = np.zeros((len(tokens), read.shape[1]), np.float32)
    vectors[wanted] = read
    return fitting, vectors


def _steps(material: RewardTrainingData, vectors: Any) -> Steps:
    lengths = np.array([len(step.text) for step in material.steps], np.int64)
    times = {one.t for one in material.comparisons}
    scales = {t: material.scheme.weights(t) for t in times}
    return Steps(vectors, lengths, scales)


def _record(
    material: RewardTrainingData,
    settings: RewardModelSettings,
    encoder: FrozenEncoder,
    target: Path,
    seed: int,
    data: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
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
    }


def _write(
    target: Path, heads: Heads, report: RewardModelReport, record: Mapping[str, Any]
) -> None:
    """Writes all files, last the record, which identifies the heads."""
    heads.save(target / HEADS)
    atomic_write_json(target / METRICS, report.as_json())
    atomic_write_json(
        target / TRAINING_RECORD,
        {**record, "heads_digest": heads.digest, "seconds": report.seconds},
    )
