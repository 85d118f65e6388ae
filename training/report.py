"""The record of a training: `training.json`, and a summary line."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from base.atomic import atomic_write_json
from base.errors import ConfigError
from training.policy_shift import PolicyShift
from training.preference.pairs import HoldoutScore
from weights.adapters import WEIGHTS
from weights.model_folders import TRAINING_RECORD, file_hash
from weights.policy_files import policy_digest, policy_files


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


_REPORT = TypeAdapter(TrainingReport)


def write_training_record(target: Path, report: TrainingReport, made_of: Mapping[str, Any]) -> None:
    """Writes `training.json` of a model folder: what was trained, by digest, and its training.

    Args:
        target: Model folder.
        report: Result of the training.
        made_of: `base` and `chain`, which `weights.policy_files` reads (paths are relative to the
            folder), `start`, and the inputs for a repetition: `seed`, `settings`, `data` (rows or
            settings that made the examples; None if unknown) and `fingerprint` (of start,
            settings, seed and every example).
    """
    record = {
        **made_of,
        "digests": {
            "start": policy_digest(policy_files(made_of["start"]), "f16"),
            **_trained(target),
            **{name: file_hash(target / name / WEIGHTS, sha256=True) for name in made_of["chain"]},
        },
        "kind": report.kind,
        "report": asdict(report),
        "versions": {name: _version(name) for name in ("torch", "transformers", "trl", "peft")},
        "python": platform.python_version(),
    }
    atomic_write_json(target / TRAINING_RECORD, json.loads(json.dumps(record, default=str)))


def finished_training(target: Path, fingerprint: str) -> TrainingReport | None:
    """Returns the report of a model folder with this fingerprint and unchanged weights."""
    try:
        record = json.loads((target / TRAINING_RECORD).read_bytes())
        same = record["fingerprint"] == fingerprint
        if same and record["digests"].items() >= _trained(target).items():
            return _REPORT.validate_python(record["report"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError):
        return None  # trained again, which replaces it
    return None


def _trained(target: Path) -> dict[str, str]:
    """Returns the digest of the trained adapter, or of all weights, by name."""
    adapter = target / "adapter" / WEIGHTS
    if adapter.is_file():
        return {"adapter": file_hash(adapter, sha256=True)}
    return {"weights": policy_digest(policy_files(str(target)), "f32")}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
