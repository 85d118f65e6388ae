"""BM25: order, zero scores, ties at the cut, and agreement with the published formula."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.base.errors import ConfigError
from branchwise.retrieval.bm25 import Bm25Retriever, build_bm25, tokenize
from branchwise.retrieval.passages import corpus_hash, in_index_order, top_k_rows
from branchwise.types import Passage

TEXTS = ["red fox", "red red hen", "blue hen", "green"]


def corpus(texts: list[str]) -> list[Passage]:
    return [Passage(id=f"p{i}", title="", text=text) for i, text in enumerate(texts)]


def opened(folder: Path, passages: list[Passage]) -> Bm25Retriever:
    ordered = in_index_order(passages)
    folder.mkdir()
    build_bm25(ordered, folder)
    return Bm25Retriever(folder, ordered, corpus_hash(ordered))


async def test_scores_match_the_published_formula(tmp_path: Path) -> None:
    retriever = opened(tmp_path / "index", corpus(TEXTS))
    found = await retriever.search("red hen", 10)

    def weight(count: int, length: int, documents: int) -> float:
        idf = math.log(1 + (4 - documents + 0.5) / (documents + 0.5))
        return idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * length / 2))

    expected = {
        "p1": weight(2, 3, 2) + weight(1, 3, 2),
        "p0": weight(1, 2, 2),
        "p2": weight(1, 2, 2),
    }
    assert [passage.id for passage in found] == ["p1", "p0", "p2"]
    assert {p.id: p.score for p in found} == pytest.approx(expected, rel=1e-5)


async def test_ties_at_the_cut_are_ordered_by_id_for_any_corpus_order(tmp_path: Path) -> None:
    passages = [Passage(id=f"p{i:02}", title="Same", text="word") for i in range(40)]
    for n, order in enumerate([passages, passages[::-1], passages[20:] + passages[:20]]):
        retriever = opened(tmp_path / str(n), order)
        for top_k in (1, 7, 39, 40, 400):
            found = await retriever.search("word", top_k)
            assert [p.id for p in found] == [p.id for p in passages[:top_k]]


async def test_queries_without_a_match_return_no_passages(tmp_path: Path) -> None:
    retriever = opened(tmp_path / "index", corpus(TEXTS))
    assert await retriever.search("zebra", 3) == []
    assert await retriever.search("", 3) == []
    blank = opened(tmp_path / "blank", corpus(["", " ?! "]))
    assert await blank.search("zebra", 3) == []


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.text("ab ", max_size=8), min_size=1, max_size=12),
    query=st.text("ab ", max_size=6),
    top_k=st.integers(1, 14),
)
def test_a_smaller_top_k_gives_a_prefix_of_the_ranking(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str, top_k: int
) -> None:
    folder = tmp_path_factory.mktemp("bm25") / "index"
    retriever = opened(folder, corpus(texts))
    whole = asyncio.run(retriever.search(query, 100))
    assert asyncio.run(retriever.search(query, top_k)) == whole[:top_k]
    assert whole == sorted(whole, key=lambda p: (-p.score, p.id))
    shared = {f"p{i}" for i, text in enumerate(texts) if set(tokenize(text)) & set(tokenize(query))}
    assert {p.id for p in whole} == shared


@given(
    scores=st.lists(st.sampled_from([0.0, -1.0, 0.5, 1.0, 2.0]), max_size=30),
    top_k=st.integers(1, 10),
)
def test_top_k_rows_agrees_with_sorting(scores: list[float], top_k: int) -> None:
    rows = top_k_rows(np.array(scores, dtype=np.float32), top_k)
    positive = [row for row, score in enumerate(scores) if score > 0]
    assert rows.tolist() == sorted(positive, key=lambda row: (-scores[row], row))[:top_k]


def test_tokenize_keeps_the_words_of_names() -> None:
    assert tokenize("J. K. Rowling's U.S. Route 66") == ["j", "k", "rowling", "u", "route", "66"]
    assert tokenize("Laspalès") == tokenize("Laspale\u0300s") == ["laspales"]
    assert tokenize("It") == ["it"]


async def test_a_title_of_stopwords_alone_is_found(tmp_path: Path) -> None:
    passages = [Passage(id=name, title=name, text="A novel of it.") for name in ("It", "Them")]
    found = await opened(tmp_path / "index", passages).search("It", 2)
    assert [passage.id for passage in found] == ["It"]


def test_an_empty_corpus_and_repeated_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="no passages"):
        in_index_order([])
    with pytest.raises(ConfigError, match="'p0'"):
        in_index_order(corpus(["a"]) + corpus(["b"]))
