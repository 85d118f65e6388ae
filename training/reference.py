"""What the start of a preference training says of the steps, computed once and kept.

The reference of DPO never changes, and the arms and seeds of a study train on the same steps from
the same start. So its log-probabilities lie in the cache, under a hash of the start and of all
steps with their prompts: in any order, and whichever step of a pair is the chosen one.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from storage.atomic import atomic_path
from storage.cache import cache_folder
from training.packing import Row

_VERSION = "branchwise-reference-1"


def reference_logps(
    rows: Iterable[Row],
    start: str,
    compute: Callable[[Sequence[Row]], Mapping[Row, float]],
    say: Callable[[str], None],
) -> dict[Row, float]:
    """Log-probability of each step under the start, in nats, summed over the step's tokens.

    Args:
        rows: steps with their prompts; equal ones count once.
        start: digest of the start and of the precision that it is run in.
        compute: asks the start.
        say: told whether they were computed or read.

    Raises:
        StorageError: they cannot be written.
    """
    ordered = sorted(set(rows))
    key = _key(ordered, start)
    path = cache_folder() / "reference" / f"{key}.safetensors"
    kept = _read(path, key, len(ordered))
    if kept is None:
        spoiled = " (the file was damaged)" if path.exists() else ""
        found = compute(ordered)
        kept = np.array([found[row] for row in ordered], dtype=np.float64)
        _write(path, key, kept)
        say(f"reference: {len(ordered)} steps computed{spoiled}, kept in {path}")
    else:
        say(f"reference: {len(ordered)} steps read from {path}")
    return dict(zip(ordered, kept.tolist(), strict=True))


def _key(rows: Sequence[Row], start: str) -> str:
    digest = hashlib.blake2b(f"{_VERSION}\n{start}\n".encode(), digest_size=16)
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def _check(key: str, values: np.ndarray) -> str:
    return hashlib.blake2b(key.encode() + values.tobytes(), digest_size=16).hexdigest()


def _read(path: Path, key: str, n: int) -> np.ndarray | None:
    """What was kept; null where there is nothing, or not what was written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            values: np.ndarray = file.get_tensor("logps")
            check = (file.metadata() or {}).get("check")
    except (OSError, SafetensorError):
        return None
    sound = values.shape == (n,) and check == _check(key, values)
    return values if sound else None


def _write(path: Path, key: str, values: np.ndarray) -> None:
    from safetensors.numpy import save_file

    with atomic_path(path) as temporary:
        save_file({"logps": values}, str(temporary), {"check": _check(key, values)})
