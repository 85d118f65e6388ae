"""A policy as one GGUF file: found, or made once and kept in the cache."""

import logging
from pathlib import Path
from typing import Any

from engines.gguf import (
    DIGEST_KEY,
    Precision,
    export_gguf,
    gguf_metadata,
    gguf_precision,
    rewrite_gguf,
)
from engines.weights import PolicyFiles, load_policy, packaged_gguf, policy_digest
from storage.cache import cache_folder

_log = logging.getLogger(__name__)


def ready_gguf(files: PolicyFiles, precision: Precision) -> Path:
    """A GGUF file with exactly this policy in this precision.

    The folder's own `policy.gguf` if it was made from these weights, else the cache's, which is
    written on first use (seconds for packaged weights, half a minute for adapters).

    Raises:
        ConfigError: weights or a package are missing.
        StorageError: the cache cannot be written.
    """
    digest = policy_digest(files, precision)
    if files.gguf is not None and files.gguf != files.base:
        if gguf_metadata(files.gguf, DIGEST_KEY) == (digest,):
            return files.gguf
        _log.warning("%s was not made from the weights beside it: not used", files.gguf)
    plain = not files.adapters and files.base.is_file()
    if plain and gguf_precision(files.base) == precision:
        return files.base
    target = cache_folder() / "gguf" / f"{digest}.gguf"
    if not target.is_file():
        write_policy_gguf(files, precision, target)
    return target


def write_policy_gguf(
    files: PolicyFiles, precision: Precision, target: Path, model: Any = None
) -> None:
    """Write a policy as GGUF, with its digest inside.

    Args:
        files: what the policy is made of.
        precision: of the matrices.
        target: appears whole or not at all.
        model: the merged transformers model, if the caller has it; else it is loaded and merged.
    """
    digest = policy_digest(files, precision)
    if model is None and not files.adapters and files.base.is_file():
        rewrite_gguf(files.base, target, precision, digest)
        return
    if model is None:
        model, _ = load_policy(files)
    tokenizer = files.base if files.base.is_file() else packaged_gguf()
    export_gguf(model, tokenizer, target, precision, digest=digest)
