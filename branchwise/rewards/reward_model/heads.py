"""The heads of a reward model: linear functions of a step's vector, one per reward.

Source: EVO-RAG section 3.3, seven parallel linear heads on a frozen encoder. They lack a bias,
because it would cancel in a comparison of two steps. Vectors are standardised before a head reads
them, and so are the head's outputs, by mean and deviation over the training steps, so that heads
can be added up.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from branchwise.base import StorageError, as_object, atomic_path, parse_json, reject_irregular_files

from ..evo_rag.schedule import Weights
from ..settings import REWARDS

Array = NDArray[np.float32]
Learned = Literal["component", "total"]

TOTAL = "total"
"""Name of the head of a single-head model, which learns the weighted total."""
_ARRAYS = ("weight", "mean", "sd", "output_mean", "output_sd")


@dataclass(frozen=True)
class Heads:
    """K heads on vectors of width d, all arrays in float32.

    Attributes:
        names: Names of the heads: the seven rewards, or `TOTAL` alone.
        learned: Order that the heads learned: each its own `component`'s, or all the `total`'s.
        weight: Weights, (K, d); zero for a head without training data.
        mean, sd: Mean and deviation of the training vectors, (d,).
        output_mean, output_sd: Mean and deviation of the outputs on them, (K,).
    """

    names: tuple[str, ...]
    learned: Learned
    weight: Array
    mean: Array
    sd: Array
    output_mean: Array
    output_sd: Array

    def outputs(self, vectors: Array) -> Array:
        """Returns f_k(x) of each vector: (n, K)."""
        return np.asarray(np.matmul((vectors - self.mean) / self.sd, self.weight.T))

    def standardised(self, vectors: Array) -> Array:
        """Returns the outputs with mean 0 and deviation 1 over the training steps: (n, K)."""
        return np.asarray((self.outputs(vectors) - self.output_mean) / self.output_sd)

    def scores(self, vectors: Array, weights: Sequence[Weights]) -> Array:
        """Returns Σ_k w_k · head k of each vector: (n,).

        Heads that learned the total already contain the weights, so their mean is returned.

        Args:
            weights: Weights of the rewards (`rewards.evo_rag.schedule`), one mapping per vector.
        """
        heads = self.standardised(vectors)
        if self.learned == TOTAL:
            return np.asarray(heads.mean(axis=1))
        scale = np.array([[step[name] for name in REWARDS] for step in weights], np.float32)
        return np.asarray((scale.reshape(heads.shape) * heads).sum(axis=1))

    @property
    def digest(self) -> str:
        """Hash of names and weights (32 hex digits)."""
        digest = hashlib.blake2b(json.dumps([self.names, self.learned]).encode(), digest_size=16)
        for name in _ARRAYS:
            digest.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes the heads as safetensors.

        Raises:
            StorageError: If the file cannot be written.
        """
        from safetensors.numpy import save_file

        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        # One key: safetensors writes several in any order, but equal heads must give equal files.
        metadata = {"heads": json.dumps({"names": self.names, "learned": self.learned})}
        with atomic_path(path) as temporary:
            save_file(arrays, str(temporary), metadata)

    @classmethod
    def load(cls, path: Path) -> "Heads":
        """Reads heads written by `save`.

        Raises:
            ConfigError: If `path` is a pipe, a device or a folder.
            StorageError: If the file is missing or does not contain heads.
        """
        from safetensors import SafetensorError, safe_open

        reject_irregular_files(path.resolve())
        try:
            with safe_open(str(path), "numpy") as file:
                recorded = as_object(parse_json((file.metadata() or {})["heads"]))
                arrays = {name: file.get_tensor(name) for name in _ARRAYS}
                learned: Learned = "total" if recorded["learned"] == TOTAL else "component"
                return cls(names=_names(recorded["names"], arrays), learned=learned, **arrays)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise StorageError(
                f"{path}: cannot read the heads of a reward model ({error}); retrain it with "
                "`branchwise train-rm`"
            ) from error


def _names(recorded: Any, arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Returns the names of the heads, checked against the arrays.

    Raises:
        ValueError: If names and arrays do not match.
    """
    names = tuple(recorded) if isinstance(recorded, list) else ()
    width = arrays["weight"].shape[-1:]
    shapes = {"weight": (len(names), *width), "mean": width, "sd": width}
    shapes |= dict.fromkeys(("output_mean", "output_sd"), (len(names),))
    if names not in (REWARDS, (TOTAL,)):
        raise ValueError(f"unexpected names of heads: {str(recorded)[:80]}")
    if any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise ValueError("the shapes of its arrays do not match")
    return names
