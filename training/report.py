"""What a trainer leaves behind: `training.json`, and a line for the person who waits."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engines.weights import policy_digest, policy_files
from storage.atomic import atomic_write_json


@dataclass(frozen=True)
class TrainingReport:
    """How a training went.

    Attributes:
        examples: trained on.
        dropped: too long, or over `max_examples`.
        first, last: the first and the last line of `metrics.jsonl`.
        seconds: of training, all attempts.
        lengths: how long the examples are, in words.
        holdout_pairs, holdout_accuracy, holdout_margin, holdout_loss: of the pairs that were kept
            out; see `training.holdout.HoldoutScore`. Null where there are none.
    """

    kind: str
    examples: int
    dropped: int
    steps: int
    seconds: float
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    lengths: str = ""
    holdout_pairs: int = 0
    holdout_accuracy: float | None = None
    holdout_margin: float | None = None
    holdout_loss: float | None = None

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.examples} examples, {self.steps} steps, {self.seconds:.0f} s, "
            f"loss {self.first.get('loss', float('nan')):.3f} → "
            f"{self.last.get('loss', float('nan')):.3f}"
        )

    def totals(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def write_training_record(target: Path, report: TrainingReport, made_of: Mapping[str, Any]) -> None:
    """`training.json` of a model folder: what the adapter sits on, by digest, and how it came.

    Args:
        target: the model folder.
        report: how the training went.
        made_of: `base` and `chain`, which `engines.weights` reads (paths are relative to the
            folder), `start`, and what a repetition needs: `seed`, `settings`, `data` (which
            rows, or which settings made the examples; null if unknown) and `fingerprint` (of
            start, settings, seed and every example).
    """
    record = {
        **made_of,
        "digests": {
            "start": policy_digest(policy_files(made_of["start"]), "f16"),
            "adapter": _digest(target / "adapter" / "adapter_model.safetensors"),
        },
        "kind": report.kind,
        "report": asdict(report),
        "versions": {name: _version(name) for name in ("torch", "transformers", "trl", "peft")},
        "python": platform.python_version(),
    }
    atomic_write_json(target / "training.json", json.loads(json.dumps(record, default=str)))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
