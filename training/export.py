"""A trained policy as merged weights and as one GGUF file, with proof that the training is in them.

OpenVINO ignores adapters and 16-bit weights round: an export can quietly be the untrained policy.
So both files are read back, and what training changed in the logits is compared with what is left
of the change.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent.protocol import AgentProtocol
from agent.reasonrag import ReasonRAG
from agent.state import State
from engines.gguf import Precision, export_gguf
from engines.weights import (
    PolicyFiles,
    load_policy,
    packaged_gguf,
    policy_digest,
    policy_files,
)
from storage.errors import ConfigError, StorageError
from training.arguments import quiet
from training.examples import prompt_ids

LEAST_CORRELATION = 0.9
"""Below this correlation with the trained change the export has lost it."""

GGUF = "policy.gguf"
MERGED = "model.safetensors"

_QUESTIONS = (
    "What is the capital of the country in which Lima lies?",
    "Which currency is used in Kyoto?",
    "Who directed the film that won the prize in 1994?",
    "Are both rivers in the same country?",
)
_POSITIONS = 24


@dataclass(frozen=True, slots=True)
class Survival:
    """How much of the trained change of the logits a file still has.

    Attributes:
        correlation: of the file's change with the trained change, in [−1, 1].
        relative_error: norm of what is missing or added, as a share of the trained change.
    """

    correlation: float
    relative_error: float


@dataclass(frozen=True)
class ExportReport:
    """What was written and how much of the training is in it.

    Attributes:
        trained_change: mean absolute change of the logits by training.
    """

    gguf: Path
    merged: Path
    precision: str
    trained_change: float
    gguf_survival: Survival
    merged_survival: Survival

    def summary(self) -> str:
        """One line."""
        return (
            f"logits changed by {self.trained_change:.3f} on average; of that, {self.gguf.name} "
            f"keeps correlation {self.gguf_survival.correlation:.4f} (relative error "
            f"{self.gguf_survival.relative_error:.3f}), {self.merged.name} "
            f"{self.merged_survival.correlation:.4f} ({self.merged_survival.relative_error:.3f})"
        )

    def totals(self) -> dict[str, Any]:
        """For `--json`."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


def export_policy(
    model_folder: str,
    target: Path | None = None,
    precision: Precision = "f16",
    protocol: AgentProtocol | None = None,
) -> ExportReport:
    """Write `model.safetensors` (fp16, with tokenizer) and `policy.gguf`, and prove both.

    Args:
        model_folder: a folder with an adapter.
        target: where to write; null for `model_folder` itself.
        precision: of the GGUF file's matrices.
        protocol: whose prompts the proof uses; ReasonRAG by default.

    Raises:
        ConfigError: the folder has no adapter, or it does not fit its base.
        StorageError: the trained change of the logits is not in an exported file.
    """
    quiet()
    files = policy_files(model_folder)
    if not files.adapters:
        raise ConfigError(f"{model_folder} has no adapter: nothing was trained that is not merged")
    target = Path(model_folder) if target is None else target
    below, tokenizer = load_policy(PolicyFiles(files.model, files.base, files.adapters[:-1]))
    prompts = proof_prompts(tokenizer, protocol or ReasonRAG())
    start = logits(below, prompts)
    del below  # one model in memory at a time
    model, tokenizer = load_policy(files)
    trained = logits(model, prompts)
    _write_merged(model, tokenizer, target)
    _write_gguf(model, files.base, target, precision)
    del model
    change = trained - start
    report = ExportReport(
        gguf=target / GGUF,
        merged=target / MERGED,
        precision=precision,
        trained_change=float(np.abs(change).mean()),
        gguf_survival=_survival(change, target / GGUF, start, prompts),
        merged_survival=_survival(change, target, start, prompts),
    )
    _refuse_lost(report)
    return report


def proof_prompts(tokenizer: Any, protocol: AgentProtocol) -> list[tuple[int, ...]]:
    """Token ids of first prompts and of forced-answer prompts."""
    states = [State(question) for question in _QUESTIONS]
    return [
        prompt_ids(protocol.messages(state, forced=forced), tokenizer)
        for state in states
        for forced in (False, True)
    ]


def logits(model: Any, prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """Float32 logits of the last positions of every prompt: (all positions, vocabulary)."""
    import torch

    rows = []
    with torch.inference_mode():
        for prompt in prompts:
            output = model(input_ids=torch.tensor([list(prompt)]), logits_to_keep=_POSITIONS)
            rows.append(output.logits[0].float().numpy())
    return np.concatenate(rows)


def survival(trained_change: np.ndarray, exported_change: np.ndarray) -> Survival:
    """How much of `trained_change` there is in `exported_change` (arrays of one shape)."""
    wanted, got = trained_change.ravel(), exported_change.ravel()
    norm = float(np.linalg.norm(wanted))
    if norm == 0 or not np.any(got):
        return Survival(0.0, 1.0)
    cosine = float(wanted @ got) / (norm * float(np.linalg.norm(got)))
    return Survival(cosine, float(np.linalg.norm(got - wanted)) / norm)


def _survival(
    change: np.ndarray, exported: Path, start: np.ndarray, prompts: Sequence[Sequence[int]]
) -> Survival:
    read, _ = load_policy(PolicyFiles(str(exported), exported))
    return survival(change, logits(read, prompts) - start)


def _write_merged(model: Any, tokenizer: Any, target: Path) -> None:
    """`model.safetensors` with configuration and tokenizer, as vLLM and transformers read them."""
    import torch

    tokenizer.save_pretrained(str(target))
    model.to(torch.float16).save_pretrained(str(target))
    model.to(torch.float32)


def _write_gguf(model: Any, base: Path, target: Path, precision: Precision) -> None:
    """`policy.gguf`, marked with the digest of the folder it lies in so that engines use it."""
    source = base if base.is_file() else packaged_gguf()
    digest = policy_digest(policy_files(str(target)), precision)
    export_gguf(model, source, target / GGUF, precision, digest=digest)


def _refuse_lost(report: ExportReport) -> None:
    for path, kept in (
        (report.gguf, report.gguf_survival),
        (report.merged, report.merged_survival),
    ):
        if kept.correlation < LEAST_CORRELATION:
            raise StorageError(
                f"{path}: the trained change of the logits is lost (correlation "
                f"{kept.correlation:.3f}, needed {LEAST_CORRELATION}; mean change "
                f"{report.trained_change:.2g}); export as f16, or train longer: the change is "
                "smaller than the rounding"
            )
