"""One training from start to output folder; shared by all trainers.

It loads the start in float32, drops examples that do not fit, resumes only from its own
checkpoints, and writes the adapter (or all weights), the curve and the record.
"""

import hashlib
import json
import logging
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from branchwise.base import ConfigError, Log, StorageError, atomic_write_json
from branchwise.weights import (
    PACKAGED,
    TRAINING_RECORD,
    WEIGHTS,
    copy_chain,
    load_policy,
    policy_digest,
    policy_files,
    recorded_hashes,
    save_adapter,
    save_weights,
    tokenizer_of,
)

from .arguments import silence_libraries, trainer_arguments
from .checkpoints import latest_checkpoint
from .curves import PolicyShift, curves, movement_of, read_metrics
from .examples import filter_by_length
from .packing import enable_packed_forward
from .preference.preference_tokens import HoldoutScore
from .settings import ExampleSettings, TrainingKind, TrainingSettings

FEWEST_STEPS = 10
"""Optimiser steps below which a training on examples hardly changes a policy."""


@dataclass(frozen=True)
class TrainingReport:
    """Result of a training.

    Attributes:
        examples: Number of examples trained on; in outcome RL, of rollouts.
        dropped: Number of examples that were too long; in outcome RL, of calls.
        movement: Figures of the training's end; None without a curve.
        seconds: Seconds of training, over all attempts.
        holdout: Scores on the held-out pairs; None without such pairs.
    """

    kind: str
    examples: int
    dropped: int
    steps: int
    seconds: float
    movement: PolicyShift | None = None
    holdout: HoldoutScore | None = None

    def summary(self) -> str:
        """Returns one line."""
        examples = "rollouts" if self.kind == "grpo" else "examples"
        moved = f", {self.movement.learned} (first and last quarter)" if self.movement else ""
        return f"{self.examples} {examples}, {self.steps} steps, {self.seconds:.0f} s{moved}"

    def totals(self) -> dict[str, Any]:
        """Returns the totals for `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class TrainingRun:
    """A training, from its inputs to its output folder.

    Attributes:
        kind: Kind of the training; written to `training.json`.
        training: Settings of the block of this kind, and the shared ones.
        start: "packaged" or a model folder.
        target: Folder for `adapter/` and `chain/` (or `model.safetensors` and a tokenizer, if all
            weights are trained), `metrics.jsonl`, `training.json`, `checkpoints/`.
        seed: Random seed of initialisation and order.
        resume: Whether to fail if the target has another training's checkpoints. If False, they
            are replaced. This training's own checkpoints are resumed in both cases.
        log: Callback for progress messages; defaults to the log.
        data: Origin of the examples, as JSON; written to `training.json`.
    """

    kind: TrainingKind
    training: TrainingSettings
    start: str
    target: Path
    seed: int
    resume: bool = False
    log: Log = logging.getLogger(__name__).info
    data: Mapping[str, Any] | None = None

    def load_start(self) -> tuple[Any, Any]:
        """Returns the start as a plain float32 model, and its tokenizer.

        The model also reads packed batches, if `training.packed` is set.

        Raises:
            ConfigError: If the start is missing, or is the target itself. Or if the model cannot
                read packed batches, and `training.packed` is set.
        """
        silence_libraries()
        if self.start != PACKAGED and Path(self.start).resolve() == self.target.resolve():
            raise ConfigError(
                f"{self.start} is both the start and the target; choose another target"
            )
        model, tokenizer = load_policy(policy_files(self.start))
        if self.training.lora is None:
            model.requires_grad_(True)  # a merge freezes them
        if self.training.packed:
            enable_packed_forward(model)
        return model, tokenizer

    def fitting(self, lengths: Sequence[int]) -> list[int]:
        """Returns the indices of the examples that fit, given all lengths in tokens; logs them.

        Raises:
            ConfigError: If too many do not fit, or `lengths` is empty.
        """
        limit, share = self.training.of(self.kind).max_length, self.training.max_dropped_share
        fitting, summary = filter_by_length(lengths, limit, share)
        self.log(f"{self.kind}: {summary}")
        return fitting

    @property
    def checkpoints(self) -> Path:
        return self.target / "checkpoints"

    def configuration(self, arguments: Any, **options: Any) -> Any:
        """Returns the trainer's configuration: `arguments` (a `TrainingArguments`) with `options`.

        It limits the trainer to one GPU per process. A packed batch is one sequence, which
        PyTorch's `DataParallel` would cut, and TRL's DPO rejects several GPUs. Several processes
        (`torchrun`) take a batch each.
        """
        shared = trainer_arguments(self.training, self.kind, self.checkpoints, self.seed)
        configuration = arguments(**{**shared, **options})
        if configuration.n_gpu > 1:
            configuration._n_gpu = 1
        return configuration

    def train(
        self,
        trainer: Any,
        examples: Sequence[Sized],
        before_filtering: int,
        scored: Callable[[], HoldoutScore | None] = lambda: None,
    ) -> TrainingReport:
        """Runs `trainer` and writes the result, or returns that of the same finished training.

        Args:
            trainer: Hugging Face trainer of a PEFT model, or of the start itself.
            examples: Training examples; in outcome RL, whatever decides the rollouts.
            before_filtering: Number of examples before the long ones were left out.
            scored: Called after training; scores the trained policy on held-out pairs.

        Raises:
            StorageError: If `resume` is set, and the target has another training's checkpoints.
        """
        from transformers import PrinterCallback

        fingerprint = self._fingerprint(examples)
        if finished := _finished_training(self.target, fingerprint):
            self.log(f"{self.kind}: {self.target} is finished; remove it to train again")
            return finished
        checkpoint = self._resume_point(fingerprint)
        if warning := self._too_short(len(examples)):
            self.log(f"{self.kind}: {warning}")
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(curves(self.target, self.checkpoints, fingerprint, self.log))
        began = time.monotonic()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        seconds = time.monotonic() - began
        holdout = scored()
        if holdout:
            self.log(f"{self.kind}: {holdout}")
        base, chain = self._write(trainer.model)
        lines = read_metrics(self.target)
        trained, dropped = len(examples), before_filtering - len(examples)
        if self.kind == "grpo":
            trained = int(sum(line.get("rollouts", 0) for line in lines))
            dropped = int(sum(line.get("too_long", 0) for line in lines))
        report = TrainingReport(
            kind=self.kind,
            examples=trained,
            dropped=dropped,
            steps=trainer.state.global_step,
            seconds=round(max(seconds, lines[-1].get("seconds", 0.0) if lines else 0.0), 1),
            movement=movement_of(self.target),
            holdout=holdout,
        )
        self._write_record(report, fingerprint, base, chain)
        return report

    def _too_short(self, examples: int) -> str | None:
        """Returns a warning if the training has too few steps to learn."""
        settings = self.training.of(self.kind)
        if not isinstance(settings, ExampleSettings):
            return None
        steps = settings.steps(examples)
        if steps >= FEWEST_STEPS:
            return None
        return (
            f"warning: too short to learn: optimiser steps {steps}, examples {examples}; "
            "use more examples or epochs, or a smaller batch_size"
        )

    def _write(self, model: Any) -> tuple[str, list[str]]:
        """Writes the trained policy; returns `base` and `chain` for `training.json`."""
        if self.training.lora is None:
            save_weights(model, tokenizer_of(policy_files(self.start).base), self.target)
            return ".", []
        base_and_chain = copy_chain(self.start, self.target)
        save_adapter(model, self.target)
        return base_and_chain

    def _write_record(
        self, report: TrainingReport, fingerprint: str, base: str, chain: list[str]
    ) -> None:
        """Writes `training.json`: what was trained, by digest, and its training.

        It has `base` and `chain`, which `weights.policies` reads (paths are relative to the
        target), and the inputs for a repetition: `start`, `seed`, `settings`, `data` (rows or
        settings that made the examples; None if unknown) and `fingerprint` (of start, settings,
        seed and every example).
        """
        record = {
            "base": base,
            "chain": chain,
            "start": self.start,
            "seed": self.seed,
            "fingerprint": fingerprint,
            "data": self.data,
            "settings": self.training.values_of(self.kind),
            "digests": {
                "start": policy_digest(policy_files(self.start), "f16"),
                **_trained_digest(self.target),
                **{k: v for name in chain for k, v in recorded_hashes(self.target, name).items()},
            },
            "kind": report.kind,
            "report": asdict(report),
            "versions": {name: _version(name) for name in ("torch", "transformers", "trl", "peft")},
            "python": platform.python_version(),
        }
        atomic_write_json(
            self.target / TRAINING_RECORD, json.loads(json.dumps(record, default=str))
        )

    def _resume_point(self, fingerprint: str) -> Path | None:
        """Returns the checkpoint to resume from; removes another training's, with their curve."""
        try:
            checkpoint = latest_checkpoint(self.checkpoints, fingerprint)
        except StorageError as error:
            if self.resume:
                raise
            self.log(f"{self.kind}: starts at step 0 ({error})")
            checkpoint = None
        if checkpoint:
            self.log(f"{self.kind}: resumes from {checkpoint}")
        else:
            shutil.rmtree(self.checkpoints, ignore_errors=True)  # else the new one could load them
        return checkpoint

    def _fingerprint(self, examples: Sequence[Sized]) -> str:
        """Returns the hash of everything that affects the training (32 hex digits)."""
        # They change no data, and weights by rounding at most.
        passing = {"save_every", "report_to", "allow_off_policy_pairs", "max_dropped_share"}
        passing |= {"eval_every", "micro_batch", "micro_tokens"}
        settings = self.training.values_of(self.kind)
        parts = {
            "kind": self.kind,
            "settings": {name: settings[name] for name in settings.keys() - passing},
            "start": policy_digest(policy_files(self.start), "f32"),
            "seed": self.seed,
            "examples": [repr(example) for example in examples],
        }
        canonical = json.dumps(parts, sort_keys=True).encode()
        return hashlib.blake2b(canonical, digest_size=16).hexdigest()


def _finished_training(target: Path, fingerprint: str) -> TrainingReport | None:
    """Returns the report of a model folder with this fingerprint and unchanged weights."""
    try:
        record = json.loads((target / TRAINING_RECORD).read_bytes())
        same = record["fingerprint"] == fingerprint
        if same and record["digests"].items() >= _trained_digest(target).items():
            return TypeAdapter(TrainingReport).validate_python(record["report"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError):
        return None  # trained again, which replaces it
    return None


def _trained_digest(target: Path) -> dict[str, str]:
    """Returns the digest of the trained adapter, or of all weights, by name."""
    if (target / "adapter" / WEIGHTS).is_file():
        return recorded_hashes(target, "adapter")
    return {"weights": policy_digest(policy_files(str(target)), "f32")}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
