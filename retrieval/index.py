"""Opens the retriever that a recipe asks for; indexes are built once and then memory-mapped."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from retrieval.bm25 import TOKENISER, Bm25Retriever, build_bm25
from retrieval.cached import CachedRetriever
from retrieval.interface import Retriever
from retrieval.passages import corpus_hash, in_index_order
from retrieval.settings import RetrievalSettings
from storage.cache import cache_folder
from storage.errors import ConfigError, StorageError
from storage.records import Passage

__all__ = ["corpus_hash", "open_retriever"]

FORMAT = 1
"""Version of the files of an index; part of its key."""


def open_retriever(
    settings: RetrievalSettings, corpus: Sequence[Passage], cache: Path | None = None
) -> CachedRetriever:
    """The retriever of `settings` over `corpus`, building its index if there is none yet.

    Args:
        settings: which kind, and how it encodes.
        corpus: the passages, in any order; ignored by kind `http` (the server has its own).
        cache: folder of all indexes; null takes `indexes` in the cache folder.

    Raises:
        ConfigError: empty corpus, two passages with one id, no url for `http`, or the extra
            that `dense` and `fusion` need is not installed.
        RetrievalError: an index on disk is damaged.
        StorageError: the folder of the indexes cannot be written.
    """
    if settings.kind == "http":
        return _open_http(settings)
    passages = in_index_order(corpus)
    digest = corpus_hash(passages)
    folder = cache or cache_folder() / "indexes"
    if settings.kind == "bm25":
        return CachedRetriever(_open_bm25(passages, digest, folder))
    if settings.kind == "dense":
        return CachedRetriever(_open_dense(settings, passages, digest, folder))
    from retrieval.fusion import FusionRetriever

    parts = [
        _open_bm25(passages, digest, folder),
        _open_dense(settings, passages, digest, folder),
    ]
    return CachedRetriever(FusionRetriever(parts, settings.rrf_k))


def _open_bm25(passages: Sequence[Passage], corpus: str, cache: Path) -> Retriever:
    parts = {"corpus": corpus, "tokeniser": TOKENISER, "bm25s": version("bm25s")}
    digest = _key("bm25", parts)
    folder = built_once(cache / f"bm25-{digest}", lambda new: build_bm25(passages, new))
    return Bm25Retriever(folder, passages, digest)


def _open_dense(
    settings: RetrievalSettings, passages: Sequence[Passage], corpus: str, cache: Path
) -> Retriever:
    from retrieval.dense import DenseRetriever, build_dense
    from retrieval.encoder import Encoder

    encoder = Encoder(settings.dense)
    digest = _key("dense", {"corpus": corpus, "encoder": encoder.identity})
    folder = built_once(cache / f"dense-{digest}", lambda new: build_dense(encoder, passages, new))
    return DenseRetriever(folder, passages, encoder, digest)


def _open_http(settings: RetrievalSettings) -> CachedRetriever:
    from retrieval.http import HttpRetriever

    if not settings.url:
        raise ConfigError(
            "retrieval.kind is http but retrieval.url is null: "
            "set it to the search server, such as http://127.0.0.1:8001/retrieve"
        )
    return CachedRetriever(HttpRetriever(settings.url))


def _key(kind: str, parts: dict[str, str]) -> str:
    text = json.dumps({"format": FORMAT, "kind": kind, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Makes `folder` by `build` unless it exists; it is either whole or not there.

    `build` fills a neighbour that is synced and renamed at the end, under a lock, so that two
    processes that want one index build it once and a killed one leaves nothing that a later one
    could take for an index.

    Raises:
        StorageError: the file system refused (no room, no permission, a file in the way).
    """
    try:
        return _built_once(folder, build)
    except OSError as error:
        raise StorageError(
            f"cannot make the index {folder} ({error}): make room or mend the permissions, or set "
            "the environment variable BRANCHWISE_CACHE to a folder that can be written"
        ) from error


def _built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if folder.is_dir():
            return folder
        new = folder.with_name(folder.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        build(new)
        for path in [*new.iterdir(), new]:
            _sync(path)
        new.rename(folder)
        _sync(folder.parent)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
