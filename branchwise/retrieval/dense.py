"""Exact search by inner product over memory-mapped vectors, through faiss."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from branchwise.base import Log, StepMessages
from branchwise.types import Passage, RetrievedPassage

from .encoder import Encoder, Vectors
from .passages import PassageNumbers, Scores, retrieved, top_k_rows

VECTORS = "vectors.npy"
_CHUNK = 1024
_log = logging.getLogger(__name__)


def build_dense(
    encoder: Encoder, passages: Sequence[Passage], folder: Path, log: Log | None = None
) -> None:
    """Writes the vectors of `passages` (in index order) into `folder`."""
    messages = StepMessages(log or _log.info, "passages encoded", len(passages))
    for start in range(0, len(passages), _CHUNK):
        chunk = passages[start : start + _CHUNK]
        encoded = encoder.encode_passages([f"{passage.title} {passage.text}" for passage in chunk])
        if start == 0:
            shape = (len(passages), encoded.shape[1])
            vectors = np.lib.format.open_memmap(
                folder / VECTORS, mode="w+", dtype=np.float32, shape=shape
            )
        vectors[start : start + len(chunk)] = encoded
        messages.report(start + len(chunk))
    vectors.flush()


class DenseRetriever:
    """Encodes the query in a thread and compares it with every passage (no approximation)."""

    def __init__(
        self, folder: Path, passages: Sequence[Passage], encoder: Encoder, digest: str
    ) -> None:
        """Memory-maps an intact index of `build_dense` (`storage.cache`).

        Args:
            folder: the index.
            passages: the same passages, in the same order.
            encoder: the encoder that built it.
            digest: Hash of the corpus and of every setting that affects results.
        """
        self._vectors: Vectors = np.asarray(np.load(folder / VECTORS, mmap_mode="r"))
        self._passages = passages
        self._encoder = encoder
        self.digest = digest

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the best `top_k` passages by (−inner product, id); none at or below zero."""
        return await asyncio.to_thread(self._search, query, top_k)

    def _search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        rows, scores = nearest(self._vectors, self._encoder.encode_queries([query])[0], top_k)
        return retrieved(self._passages, rows, scores)


def nearest(vectors: Vectors, query: Vectors, top_k: int) -> tuple[PassageNumbers, Scores]:
    """Returns the rows of the largest inner products above zero, by (−score, row), with their
    scores.

    faiss returns an arbitrary choice among equal scores, so more are fetched until the last
    score is below the cut.

    Args:
        vectors: shape (n, dimension).
        query: shape (dimension,).
        top_k: Number of passages, ≥ 1.
    """
    import faiss

    depth = top_k = min(top_k, len(vectors))
    while True:
        depth = min(2 * depth + 8, len(vectors))
        (scores,), (rows,) = faiss.knn(
            query[np.newaxis], vectors, depth, metric=faiss.METRIC_INNER_PRODUCT
        )
        if depth == len(vectors) or scores[-1] < scores[top_k - 1] or scores[-1] <= 0:
            break
    by_row = np.argsort(rows)
    scores, rows = scores[by_row], rows[by_row]
    best = top_k_rows(scores, top_k)
    return rows[best], scores[best]
