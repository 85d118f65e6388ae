"""Opening a retriever: built once, and keyed by everything that affects a result."""

from pathlib import Path

import pytest
from scripted_engine import ScriptedRetriever

from branchwise.base.errors import ConfigError, StorageError
from branchwise.retrieval import index
from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.interface import CachedRetriever
from branchwise.retrieval.passages import corpus_hash
from branchwise.retrieval.settings import Bm25Settings, HttpSettings
from branchwise.types import Passage, RetrievedPassage

CORPUS = [
    Passage(id="a", title="Ada", text="wrote the first program"),
    Passage(id="b", title="Bob", text="wrote a letter"),
]


async def test_an_index_is_built_once_and_then_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_retriever(Bm25Settings(), CORPUS, tmp_path)
    monkeypatch.setattr(index, "build_bm25", lambda *_: pytest.fail("built a second time"))
    again = open_retriever(Bm25Settings(), CORPUS[::-1], tmp_path)
    assert first.digest == again.digest
    assert await first.search("program", 2) == await again.search("program", 2)


def test_another_corpus_gets_another_index(tmp_path: Path) -> None:
    changed = [CORPUS[0], CORPUS[1].model_copy(update={"text": "wrote a  letter"})]
    first = open_retriever(Bm25Settings(), CORPUS, tmp_path)
    assert open_retriever(Bm25Settings(), changed, tmp_path).digest != first.digest


def test_corpus_hash_separates_fields_and_ignores_order() -> None:
    left = [Passage(id="a", title="bc", text="d")]
    right = [Passage(id="ab", title="c", text="d")]
    assert corpus_hash(left) != corpus_hash(right)
    assert corpus_hash(CORPUS) == corpus_hash(CORPUS[::-1])


def test_a_cache_that_is_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "taken"))
    with pytest.raises(StorageError, match=r"taken/indexes.*BRANCHWISE_CACHE"):
        open_retriever(Bm25Settings(), CORPUS)


async def test_identical_queries_are_answered_from_memory() -> None:
    passage = RetrievedPassage(id="a", title="Ada", text="wrote the first program", score=1.0)
    inner = ScriptedRetriever(lambda _: [passage])
    retriever = CachedRetriever(inner)
    first = await retriever.search("program", 2)
    expected = list(first)
    first.append(RetrievedPassage(id="x", title="", text="", score=9.0))
    assert await retriever.search("program", 2) == expected
    await retriever.search("program", 1)
    assert inner.queries == [("program", 2), ("program", 1)]


def test_http_needs_a_url() -> None:
    with pytest.raises(ConfigError, match=r"retrieval\.url"):
        open_retriever(HttpSettings(kind="http"), [])
    for url in ("localhost:8001", "http://[::1", "http://localhost:99999"):
        with pytest.raises(ConfigError, match=r"should look like|give an http"):
            open_retriever(HttpSettings(kind="http", url=url), [])
