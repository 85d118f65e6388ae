"""Opens a recipe's retriever; indexes are built once and then memory-mapped."""

import hashlib
import json
import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from branchwise.base import Log
from branchwise.storage import cache_section, get_or_build
from branchwise.types import Passage

from .bm25 import TOKENISER, Bm25Retriever, build_bm25
from .interface import CachedRetriever, FusionRetriever, Retriever
from .passages import corpus_hash, in_index_order
from .settings import DenseSettings, RetrievalSettings

_log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the files of an index; part of its key."""

LARGE_CORPUS = 50_000
"""Passages from which building a BM25 index takes seconds, so a message announces it."""


def open_retriever(
    settings: RetrievalSettings,
    corpus: Sequence[Passage],
    cache: Path | None = None,
    log: Log | None = None,
) -> CachedRetriever:
    """Returns the retriever of `settings` over `corpus`; builds its index if necessary.

    Args:
        settings: Kind of retrieval, and its encoder.
        corpus: the passages, in any order; ignored by kind `http` (the server has its own).
        cache: folder of all indexes; None takes `indexes` in the cache folder.
        log: Callback for progress and for messages about damaged indexes; defaults to the log.

    Raises:
        ConfigError: If the corpus is empty or has two passages with one id, no url for `http`, the
            extra that `dense` and `fusion` need is not installed, or others can write into
            the cache.
        StorageError: If the folder of the indexes cannot be written.
    """
    if settings.kind == "http":
        from .http_retriever import HttpRetriever

        return CachedRetriever(HttpRetriever(settings.url))
    passages = in_index_order(corpus)
    digest = corpus_hash(passages)
    folder = cache or cache_section("indexes")
    retrievers: list[Retriever] = []
    if settings.kind != "dense":
        retrievers.append(_open_bm25(passages, digest, folder, log))
    if settings.kind != "bm25":
        retrievers.append(_open_dense(settings.dense, passages, digest, folder, log))
    is_fusion = settings.kind == "fusion"
    return CachedRetriever(FusionRetriever(retrievers) if is_fusion else retrievers[0])


def _open_bm25(passages: Sequence[Passage], corpus: str, cache: Path, log: Log | None) -> Retriever:
    digest = _key("bm25", corpus=corpus, tokeniser=TOKENISER, bm25s=version("bm25s"))

    def build(new: Path) -> None:
        if len(passages) >= LARGE_CORPUS:
            (log or _log.info)(f"building the BM25 index of {len(passages):,} passages")
        build_bm25(passages, new)

    folder = get_or_build(cache / f"bm25-{digest}", build, log)
    return Bm25Retriever(folder, passages, digest)


def _open_dense(
    settings: DenseSettings, passages: Sequence[Passage], corpus: str, cache: Path, log: Log | None
) -> Retriever:
    from .dense import DenseRetriever, build_dense
    from .encoder import Encoder

    encoder = Encoder(settings)
    digest = _key("dense", corpus=corpus, encoder=encoder.identity)

    def build(new: Path) -> None:
        build_dense(encoder, passages, new, log)

    folder = get_or_build(cache / f"dense-{digest}", build, log)
    return DenseRetriever(folder, passages, encoder, digest)


def _key(kind: str, **parts: str) -> str:
    text = json.dumps({"format": FORMAT, "kind": kind, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
