"""A policy as one GGUF file for the embedded engine, and whether that engine can run its base.

OpenVINO GenAI builds its own graph from a GGUF file, for three architectures. It ignores metadata
that it does not know, such as a scaled rotary embedding, and then computes other numbers without an
error. So everything that it would ignore is refused before anything is loaded or written.
"""

import logging
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, Log
from branchwise.storage import cache_section, file_fault, get_or_build

from .gguf import (
    DIGEST_KEY,
    ROWS_ARE_INTERLEAVED,
    Precision,
    check_same_model,
    export_gguf,
    gguf_metadata,
    gguf_precision,
    metadata_values,
    open_gguf,
    rewrite_gguf,
)
from .gguf_header import PRE_TOKENIZERS, read_tokenizer
from .model_folders import read_config
from .policies import (
    PolicyFiles,
    has_tokenizer,
    is_packaged,
    load_policy,
    packaged_gguf,
    policy_digest,
    tokenizer_source,
)
from .safe_loading import pretrained

_NAME = "policy.gguf"
_log = logging.getLogger(__name__)
_FACTORS = "rope_freqs.weight"
"""Tensor of the rotary factors of Llama 3.1 and later."""
_USE = (
    "The embedded engine runs Llama, Qwen2 and Qwen3 models with the tokenizer of SmolLM2, "
    "Llama 3, Qwen2 or Qwen3. Choose one of them, or serve this one: `engine: vllm` or `openai`"
)


def ensure_gguf(files: PolicyFiles, precision: Precision, log: Log | None = None) -> Path:
    """Returns a GGUF file with exactly this policy in this precision.

    The file is the folder's own `policy.gguf` if that was exported from these weights and is
    undamaged. Otherwise it is a cache entry, written on first use (seconds for packaged weights,
    half a minute with adapters). Seals protect both files: a changed bit would give other trees
    under the same digest.

    Args:
        files: Files of the policy.
        precision: Number format of the matrices.
        log: Callback for messages about unused or rebuilt files; defaults to the log.

    Raises:
        ConfigError: If weights or a package are missing, or others can write into the cache.
        StorageError: If the cache cannot be written.
    """
    digest = policy_digest(files, precision)
    if files.gguf is not None and files.gguf != files.base:
        fault = file_fault(files.gguf)
        if fault is None and gguf_metadata(files.gguf, DIGEST_KEY) == (digest,):
            return files.gguf
        reason = (
            "it was not exported from the current weights in its folder" if fault is None else fault
        )
        (log or _log.warning)(
            f"{files.gguf} is not used: {reason}; `branchwise export` rewrites it"
        )
    plain = not files.adapters and files.base.is_file()
    if plain and gguf_precision(files.base) == precision:
        return files.base

    def build(new: Path) -> None:
        write_policy_gguf(files, precision, new / _NAME)

    return get_or_build(cache_section("gguf") / digest, build, log) / _NAME


def write_policy_gguf(
    files: PolicyFiles, precision: Precision, target: Path, model: Any = None
) -> None:
    """Writes a policy as GGUF, with its digest inside.

    Args:
        files: Files of the policy.
        precision: Number format of the matrices.
        target: Output file, written atomically.
        model: Merged transformers model; by default it is loaded and merged here.
    """
    digest = policy_digest(files, precision)
    if model is None and not files.adapters and files.base.is_file():
        rewrite_gguf(files.base, target, precision, digest)
        return
    if model is None:
        model, _ = load_policy(files)
    export_gguf(model, tokenizer_source(files.base), target, precision, digest=digest)


def check_embedded(files: PolicyFiles) -> None:
    """Checks that the embedded engine can run a model. Reads only metadata, in seconds.

    Raises:
        ConfigError: If it cannot run it, or a file is missing or damaged.
    """
    base = files.base
    if is_packaged(base):
        return
    reason = _gguf_reason(base) if base.is_file() else _folder_reason(base)
    if reason is not None:
        raise ConfigError(f"{files.model}: {reason}. {_USE}")


def _gguf_reason(path: Path) -> str | None:
    reader = open_gguf(path)
    kind, scaled, tokenizer, pre = metadata_values(
        reader,
        "general.architecture",
        "{arch}.rope.scaling.type",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
    )
    if kind not in ROWS_ARE_INTERLEAVED:
        return f"its architecture is {kind}"
    if scaled not in (None, "none") or _FACTORS in {t.name for t in reader.tensors}:
        return "it has a scaled rotary embedding, which OpenVINO GenAI ignores"
    if tokenizer != "gpt2" or pre not in PRE_TOKENIZERS:
        return f"its tokenizer is {tokenizer} ({pre}), which OpenVINO GenAI does not know"
    return None


def _folder_reason(folder: Path) -> str | None:
    kind = read_config(folder).get("model_type")
    if kind not in ROWS_ARE_INTERLEAVED:
        return f"its architecture is {kind}"
    config = pretrained("AutoConfig", folder)
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, which OpenVINO GenAI takes for silu"
    if config.rope_parameters["rope_type"] != "default":
        return "it has a scaled rotary embedding, which OpenVINO GenAI ignores"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return "it has sliding-window attention, which OpenVINO GenAI ignores"
    if has_tokenizer(folder):
        read_tokenizer(folder)
    else:
        check_same_model(config, packaged_gguf())
    return None
