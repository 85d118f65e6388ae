"""Log-probabilities of all steps under the start, computed once and cached.

The reference of DPO never changes, and the arms and seeds of a study train on the same steps from
the same start. So the cache stores its log-probabilities under a hash of the start and of all steps
with their prompts. The hash depends neither on their order nor on which step of a pair is chosen.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from storage.cache import cache_section, get_or_build
from training.packing import StepTokens

_VERSION = "branchwise-reference-1"
_LOGPS = "logps.npy"


def reference_logps(
    rows: Iterable[StepTokens],
    start: str,
    compute: Callable[[Sequence[StepTokens]], Mapping[StepTokens, float]],
    log: Callable[[str], None],
) -> dict[StepTokens, float]:
    """Returns the log-probability of each step under the start: nats, summed over its tokens.

    Args:
        rows: Steps with their prompts; equal ones count once.
        start: Digest of the start and of the precision that it runs in.
        compute: Function that computes them with the start.
        log: Callback for messages: computed, read from the cache, or damaged.

    Raises:
        ConfigError: If other users can write to the cache.
        StorageError: If the cache cannot be written.
    """
    ordered = sorted(set(rows))
    how = "read from"

    def build(new: Path) -> None:
        nonlocal how
        found = compute(ordered)
        np.save(new / _LOGPS, np.array([found[row] for row in ordered], dtype=np.float64))
        how = "computed, stored in"

    entry = get_or_build(cache_section("reference") / _key(ordered, start), build, log)
    log(f"reference: {len(ordered)} steps {how} {entry}")
    kept = np.load(entry / _LOGPS)
    return dict(zip(ordered, kept.tolist(), strict=True))


def _key(rows: Sequence[StepTokens], start: str) -> str:
    digest = hashlib.blake2b(f"{_VERSION}\n{start}\n".encode(), digest_size=16)
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()
