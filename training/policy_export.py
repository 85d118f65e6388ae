"""Exports a trained policy as merged weights and one GGUF file, and checks that it is trained.

OpenVINO ignores adapters, and 16-bit weights are rounded, so an export can be the untrained policy
unnoticed. So both files are read back, and their change of the logits is compared with the change
by training.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from branchwise.agent import ReasonRAG, State
from branchwise.base import ConfigError, Log, StorageError
from branchwise.storage import seal_file
from branchwise.weights import (
    PolicyFiles,
    Precision,
    check_embedded,
    export_gguf,
    load_policy,
    policy_digest,
    policy_files,
    prompt_ids,
    tokenizer_source,
)

from .arguments import silence_libraries

LEAST_CORRELATION = 0.9
"""Lowest correlation with the trained change; below it, the export has lost the training."""

GGUF = "policy.gguf"

_QUESTIONS = (
    "What is the capital of the country in which Lima lies?",
    "Which currency is used in Kyoto?",
    "Who directed the film that won the prize in 1994?",
    "Are both rivers in the same country?",
)
_POSITIONS = 24
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exported:
    """A written form of the policy, and how much of the training it has.

    Attributes:
        correlation: Correlation of the file's change of the logits with the trained change, in
            [−1, 1].
        relative_error: Norm of the deviation, as a share of the trained change.
    """

    form: str
    path: Path
    correlation: float
    relative_error: float

    def line(self) -> str:
        """Returns a line for the log."""
        return (
            f"{self.form}: the trained change of the logits survives with correlation "
            f"{self.correlation:.4f}, relative error {self.relative_error:.4f} ({self.path})"
        )


@dataclass(frozen=True)
class ExportReport:
    """The written files.

    Attributes:
        trained_change: Mean absolute change of the logits by training.
        left_out: Reason the GGUF is missing; None if it was written.
    """

    exported: tuple[Exported, ...]
    trained_change: float
    left_out: str | None = None

    def totals(self) -> dict[str, Any]:
        """Returns the totals for `--json`."""
        forms = {
            e.form: {
                "path": str(e.path),
                "correlation": e.correlation,
                "relative_error": e.relative_error,
            }
            for e in self.exported
        }
        return {**forms, "trained_change": self.trained_change, "left_out": self.left_out}


def export_policy(
    model_folder: str, precision: Precision = "f16", log: Log = _log.info
) -> ExportReport:
    """Adds merged safetensors (fp16, with tokenizer) and `policy.gguf` to a folder; checks both.

    The GGUF is for the embedded engine, and is left out if that engine cannot run the model.

    Args:
        model_folder: Folder with an adapter.
        precision: Number format of the GGUF file's matrices.
        log: Callback for the reason that the GGUF is left out, before the work starts.

    Raises:
        ConfigError: If the folder lacks an adapter, or it does not fit its base.
        StorageError: If an exported file lacks the trained change of the logits.
    """
    silence_libraries()
    files = policy_files(model_folder)
    if not files.adapters:
        raise ConfigError(
            f"{model_folder}: nothing to export, because the folder lacks an adapter. Merged "
            "weights are used as they are"
        )
    left_out = None
    try:
        check_embedded(files)
    except ConfigError as error:
        left_out = str(error)
        log(f"no GGUF: {left_out}")
    target = Path(model_folder)
    below, tokenizer = load_policy(PolicyFiles(files.model, files.base, files.adapters[:-1]))
    prompts = proof_prompts(tokenizer)
    start = logits(below, prompts)
    del below  # one model in memory at a time
    model, tokenizer = load_policy(files)
    change = logits(model, prompts) - start
    trained_change = float(np.abs(change).mean())
    if not trained_change:
        raise StorageError(
            f"{model_folder}: the training changed nothing, so there is nothing to export. Train "
            "it with more examples, epochs or a higher learning rate"
        )
    tokenizer.save_pretrained(str(target))
    model.half().save_pretrained(str(target))  # for vLLM and transformers
    model.float()
    written = {"safetensors": target}
    if left_out is None:
        _write_gguf(model, files.base, target, precision)
        written["gguf"] = target / GGUF
    del model
    exported = []
    advice = "Train longer" if precision == "f16" else "Set policy.precision: f16, or train longer"
    for form, path in written.items():
        read_back = logits(load_policy(PolicyFiles(str(path), path))[0], prompts)
        correlation, relative_error = survival(change, read_back - start)
        if correlation < LEAST_CORRELATION:
            raise StorageError(
                f"{path}: the trained change of the logits is lost (correlation "
                f"{correlation:.3f}, needed {LEAST_CORRELATION}; mean change "
                f"{trained_change:.2g}): it is smaller than the rounding. {advice}"
            )
        exported.append(Exported(form, path, correlation, relative_error))
    return ExportReport(tuple(exported), trained_change, left_out)


def proof_prompts(tokenizer: Any) -> list[tuple[int, ...]]:
    """Returns the token ids of the check's prompts: first steps and forced answers."""
    protocol = ReasonRAG()
    return [
        prompt_ids(protocol.messages(State(question), last=last), tokenizer)
        for question in _QUESTIONS
        for last in (False, True)
    ]


def logits(model: Any, prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns float32 logits of the last positions of every prompt: (all positions, vocabulary)."""
    import torch

    rows = []
    with torch.inference_mode():
        for prompt in prompts:
            output = model(input_ids=torch.tensor([list(prompt)]), logits_to_keep=_POSITIONS)
            rows.append(output.logits[0].float().numpy())
    return np.concatenate(rows)


def survival(trained_change: np.ndarray, exported_change: np.ndarray) -> tuple[float, float]:
    """Returns correlation and relative error of `exported_change` (see `Exported`).

    Both arrays have the same shape.
    """
    trained, exported = trained_change.ravel(), exported_change.ravel()
    norm = float(np.linalg.norm(trained))
    if norm == 0 or not np.any(exported):
        return 0.0, 1.0
    cosine = float(trained @ exported) / (norm * float(np.linalg.norm(exported)))
    return cosine, float(np.linalg.norm(exported - trained)) / norm


def _write_gguf(model: Any, base: Path, target: Path, precision: Precision) -> None:
    """Writes `policy.gguf` with the digest of its folder, so that engines use it.

    Also writes its seal; without it, engines would not notice a later change.
    """
    digest = policy_digest(policy_files(str(target)), precision)
    export_gguf(model, tokenizer_source(base), target / GGUF, precision, digest=digest)
    seal_file(target / GGUF)
