"""One training from start to output folder; shared by all trainers.

It loads the start in float32, drops examples that do not fit, resumes only from its own
checkpoints, and writes the adapter (or all weights), the curve and the record.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import StorageError
from base.text import Log
from training.arguments import silence_libraries, trainer_arguments
from training.checkpoints import forget_checkpoints, latest_checkpoint
from training.curves import curves, read_metrics
from training.examples import filter_by_length
from training.policy_shift import movement_of
from training.preference.pairs import HoldoutScore
from training.report import TrainingReport, finished_training, write_training_record
from training.settings import TrainingKind, TrainingSettings
from weights.adapter_chain import (
    check_not_own_start,
    copy_chain,
    remove_merged_weights,
    save_adapter,
    save_weights,
)
from weights.policy_files import load_policy, policy_digest, policy_files, tokenizer_of


def log_line(line: str) -> None:
    """Logs a line; the default if no callback is given."""
    logging.getLogger("training").info(line)


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
        log: Callback for progress messages.
        data: Origin of the examples, as JSON; written to `training.json`.
    """

    kind: TrainingKind
    training: TrainingSettings
    start: str
    target: Path
    seed: int
    resume: bool = False
    log: Log = log_line
    data: Mapping[str, Any] | None = None

    def load_start(self) -> tuple[Any, Any]:
        """Returns the start as a plain float32 model, and its tokenizer.

        Raises:
            ConfigError: If the start is missing, or is the target itself.
        """
        silence_libraries()
        check_not_own_start(self.start, self.target)
        model, tokenizer = load_policy(policy_files(self.start))
        if self.training.lora is None:
            model.requires_grad_(True)  # a merge freezes them
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

    def arguments(self) -> dict[str, Any]:
        """Returns keyword arguments for the trainer's configuration."""
        return trainer_arguments(self.training, self.kind, self.checkpoints, self.seed)

    def train(
        self,
        trainer: Any,
        examples: Sequence[Sized],
        given: int,
        scored: Callable[[Any], HoldoutScore | None] = lambda trainer: None,
    ) -> TrainingReport:
        """Runs `trainer` and writes the result, or returns that of the same finished training.

        Args:
            trainer: Hugging Face trainer of a PEFT model, or of the start itself.
            examples: Training examples; in outcome RL, whatever decides the rollouts.
            given: Number of examples before the long ones were left out.
            scored: Called after training; scores the trained policy on held-out pairs.

        Raises:
            StorageError: If `resume` is set, and the target has another training's checkpoints.
        """
        from transformers import PrinterCallback

        fingerprint = self._fingerprint(examples)
        if finished := finished_training(self.target, fingerprint):
            self.log(f"{self.kind}: {self.target} is finished; remove it to train again")
            return finished
        checkpoint = self._resume_point(fingerprint)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(curves(self.target, self.checkpoints, fingerprint, self.log))
        began = time.monotonic()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        seconds = time.monotonic() - began
        holdout = scored(trainer)
        if holdout:
            self.log(f"{self.kind}: {holdout}")
        base, chain = self._write(trainer.model)
        lines = read_metrics(self.target)
        outcome_rl = self.kind == "grpo"
        report = TrainingReport(
            kind=self.kind,
            examples=_sum(lines, "rollouts") if outcome_rl else len(examples),
            dropped=_sum(lines, "too_long") if outcome_rl else given - len(examples),
            steps=trainer.state.global_step,
            seconds=round(max(seconds, lines[-1].get("seconds", 0.0) if lines else 0.0), 1),
            movement=movement_of(self.target),
            holdout=holdout,
        )
        made_of = {
            "base": base,
            "chain": chain,
            "start": self.start,
            "seed": self.seed,
            "fingerprint": fingerprint,
            "data": self.data,
            "settings": self.training.values_of(self.kind),
        }
        write_training_record(self.target, report, made_of)
        return report

    def _write(self, model: Any) -> tuple[str, list[str]]:
        """Writes the trained policy; returns `base` and `chain` for `training.json`."""
        if self.training.lora is None:
            save_weights(model, tokenizer_of(policy_files(self.start).base), self.target)
            return ".", []
        written = copy_chain(self.start, self.target)
        remove_merged_weights(self.target)
        save_adapter(model, self.target)
        return written

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
            forget_checkpoints(self.checkpoints)
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


def _sum(lines: Sequence[Mapping[str, Any]], name: str) -> int:
    return int(sum(line.get(name, 0) for line in lines))
