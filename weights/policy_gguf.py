"""A policy as one GGUF file, from its folder or from the cache."""

import logging
from pathlib import Path
from typing import Any

from base.text import Log
from storage.cache import cache_section, get_or_build
from storage.file_seal import file_fault
from weights.gguf import (
    DIGEST_KEY,
    Precision,
    export_gguf,
    gguf_metadata,
    gguf_precision,
    rewrite_gguf,
)
from weights.policy_files import PolicyFiles, load_policy, policy_digest, tokenizer_source

_NAME = "policy.gguf"
_log = logging.getLogger(__name__)


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
        why = (
            "it was not exported from the current weights in its folder" if fault is None else fault
        )
        (log or _log.warning)(f"{files.gguf} is not used: {why}; `branchwise export` rewrites it")
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
