"""The retrievers, and how a recipe's is opened; indexes are built once and then memory-mapped."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, SerializeAsAny

from branchwise.base import Log, NamedBlock, Registry
from branchwise.storage import cache_section, get_or_build
from branchwise.types import Passage

from .bm25 import TOKENISER, Bm25Retriever, build_bm25
from .interface import CachedRetriever, FusionRetriever, Retriever
from .passages import corpus_hash, in_index_order
from .settings import Bm25Settings, HttpSettings, RetrievalSettings, VectorSettings

_log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the files of an index; part of its key."""

LARGE_CORPUS = 50_000
"""Passages from which building a BM25 index takes seconds, so a message announces it."""


class RetrieverKind(NamedTuple):
    """A kind of retriever.

    Attributes:
        open: Returns the retriever of settings over a corpus. Takes settings, passages by id, the
            folder of all indexes, and a callback for progress.
        settings_class: Class of its `retrieval:` block.
        serves_corpus: Whether it searches the recipe's corpus; a search server has its own.
    """

    open: Callable[[Any, Sequence[Passage], Path, Log | None], Retriever]
    settings_class: type[RetrievalSettings]
    serves_corpus: bool = True


RETRIEVERS: Registry[RetrieverKind] = Registry("retriever")
"""Retrievers by their name in `retrieval.kind`."""

Opener = TypeVar("Opener", bound=Callable[..., Retriever])


def register_retriever(
    kind: str,
    settings_class: type[RetrievalSettings] = RetrievalSettings,
    *,
    serves_corpus: bool = True,
) -> Callable[[Opener], Opener]:
    """Decorator: adds a retriever, by the class or function that `RetrieverKind.open` describes.

    Args:
        kind: Name in `retrieval.kind`.
        settings_class: Class of its `retrieval:` block.
        serves_corpus: See `RetrieverKind`.
    """

    def register(open_: Opener) -> Opener:
        RETRIEVERS.add(kind, RetrieverKind(open_, settings_class, serves_corpus), open_.__module__)
        return open_

    return register


RETRIEVAL_BLOCK = NamedBlock(
    "kind",
    "bm25",
    "retriever",
    lambda: {name: kind.settings_class for name, kind in RETRIEVERS.items()},
)

RetrievalBlock = Annotated[RetrievalSettings, SerializeAsAny(), BeforeValidator(RETRIEVAL_BLOCK)]
"""Type of a recipe's `retrieval:`: the settings of any registered retriever."""


def open_retriever(
    settings: RetrievalSettings,
    corpus: Sequence[Passage],
    cache: Path | None = None,
    log: Log | None = None,
) -> CachedRetriever:
    """Returns the retriever of `settings` over `corpus`; builds its index if necessary.

    Args:
        settings: Settings of a registered retriever.
        corpus: the passages, in any order; ignored by a search server (it has its own).
        cache: folder of all indexes; None takes `indexes` in the cache folder.
        log: Callback for progress and for messages about damaged indexes; defaults to the log.

    Raises:
        ConfigError: If the corpus is empty or has two passages with one id, no url for `http`, the
            extra that `dense` and `fusion` need is not installed, or others can write into
            the cache.
        StorageError: If the folder of the indexes cannot be written.
    """
    retriever = RETRIEVERS[settings.kind]
    if not retriever.serves_corpus:
        return CachedRetriever(retriever.open(settings, (), Path(), log))
    folder = cache or cache_section("indexes")
    return CachedRetriever(retriever.open(settings, in_index_order(corpus), folder, log))


@register_retriever("http", HttpSettings, serves_corpus=False)
def _open_http(
    settings: HttpSettings, corpus: Sequence[Passage], cache: Path, log: Log | None
) -> Retriever:
    from .http_retriever import HttpRetriever

    return HttpRetriever(settings.url, identity=settings.identity)


@register_retriever("fusion", VectorSettings)
def _open_fusion(
    settings: VectorSettings, passages: Sequence[Passage], cache: Path, log: Log | None
) -> Retriever:
    opened = (open_(settings, passages, cache, log) for open_ in (_open_bm25, _open_dense))
    return FusionRetriever(tuple(opened))


@register_retriever("bm25", Bm25Settings)
def _open_bm25(
    settings: RetrievalSettings, passages: Sequence[Passage], cache: Path, log: Log | None
) -> Retriever:
    corpus = corpus_hash(passages)
    digest = _key("bm25", corpus=corpus, tokeniser=TOKENISER, bm25s=version("bm25s"))

    def build(new: Path) -> None:
        if len(passages) >= LARGE_CORPUS:
            (log or _log.info)(f"building the BM25 index of {len(passages):,} passages")
        build_bm25(passages, new)

    folder = get_or_build(cache / f"bm25-{digest}", build, log)
    return Bm25Retriever(folder, passages, digest)


@register_retriever("dense", VectorSettings)
def _open_dense(
    settings: VectorSettings, passages: Sequence[Passage], cache: Path, log: Log | None
) -> Retriever:
    from .dense import DenseRetriever, build_dense
    from .encoder import Encoder

    encoder, corpus = Encoder(settings.dense), corpus_hash(passages)
    digest = _key("dense", corpus=corpus, encoder=encoder.identity)

    def build(new: Path) -> None:
        build_dense(encoder, passages, new, log)

    folder = get_or_build(cache / f"dense-{digest}", build, log)
    return DenseRetriever(folder, passages, encoder, digest)


def _key(kind: str, **parts: str) -> str:
    text = json.dumps({"format": FORMAT, "kind": kind, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
