"""Similarity of queries, by a sentence encoder."""

import threading
from collections.abc import Sequence

import numpy as np

from retrieval.encoder import Encoder, Vectors
from retrieval.settings import DenseSettings

DIGITS = 4
"""Decimals of a cosine: other thread counts and machines differ from the seventh on."""


class QuerySimilarity:
    """The largest cosine of a query to others; each text is encoded once.

    Texts are encoded one by one: what else is in its batch changes a vector's last bits, and
    a search that meets ties would then grow another tree when a run is resumed.

    EVO-RAG measures the overlap of sub-queries with all-MiniLM-L6-v2 (section 3.2), which is the
    packaged encoder.
    """

    def __init__(self) -> None:
        """Finds the encoder's files; it loads at the first text.

        Raises:
            ConfigError: If the extra `dense` or the packaged model is missing.
        """
        self._encoder = Encoder(DenseSettings())
        self._known: dict[str, Vectors] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """Identity of the cosines, as text."""
        return self._encoder.identity

    def __call__(self, query: str, others: Sequence[str]) -> float:
        """In [−1, 1]; `others` must not be empty."""
        texts = [query, *others]
        with self._lock:
            for text in texts:
                if text not in self._known:
                    self._known[text] = _unit(self._encoder.encode_queries([text]))[0]
            vector, *rest = (self._known[text] for text in texts)
        cosines = (np.clip(np.dot(vector, other), -1.0, 1.0) for other in rest)
        return round(float(max(cosines)), DIGITS)


def _unit(vectors: Vectors) -> Vectors:
    """Returns the rows of length 1; one without any stays 0."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
