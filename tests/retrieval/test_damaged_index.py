"""An index with damaged files is rebuilt, gives the same results, and logs one line."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from damage import HARMS, Harm, flipped
from dense_extra import needs_dense

from branchwise.retrieval.encoder import Vectors
from branchwise.retrieval.index import RETRIEVERS, open_retriever
from branchwise.storage.file_seal import SEAL
from branchwise.types import Passage, RetrievedPassage

WORDS = ["red", "green", "blue", "fox", "hen", "wolf", "river", "hill"]
QUERIES = [*WORDS, "red fox", "a green hill by the blue river"]
CORPUS = [
    Passage(id=f"p{i:02}", title=WORDS[i % 8], text=" ".join(Random(i).choices(WORDS, k=1 + i % 9)))
    for i in range(40)
]

KINDS = ["bm25", pytest.param("dense", marks=needs_dense)]


class WordCounts:
    """Replacement for the encoder: a vector counts the words of a text."""

    identity = "word counts"

    def __init__(self, settings: object) -> None: ...

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        return np.array([[text.split().count(word) for word in WORDS] for text in texts], "f4")

    encode_queries = encode_passages


@pytest.fixture(autouse=True)
def _encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchwise.retrieval.encoder.Encoder", WordCounts)


def found(kind: str, cache: Path, said: list[str]) -> list[list[RetrievedPassage]]:
    settings = RETRIEVERS[kind].settings_class.model_validate({"kind": kind})
    retriever = open_retriever(settings, CORPUS, cache, said.append)

    async def asked() -> list[list[RetrievedPassage]]:
        return [await retriever.search(query, 5) for query in QUERIES]

    return asyncio.run(asked())


def files_of(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_in_any_file_change_no_search_result(kind: str, tmp_path: Path) -> None:
    random, said = Random(0), list[str]()
    whole = found(kind, tmp_path, said)
    for path in files_of(tmp_path):
        for _ in range(6):
            flipped(path, random)
            assert found(kind, tmp_path, said) == whole
            assert len(said) == 1, "exactly one line is logged"
            assert path.name in said[0] or path.name == SEAL, "a damaged seal may name a file"
            said.clear()
            assert found(kind, tmp_path, said) == whole
            assert said == [], "the rebuilt index is sound"


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_rebuilt_and_change_no_search_result(
    kind: str, harm: Harm, tmp_path: Path
) -> None:
    random, said = Random(1), list[str]()
    whole = found(kind, tmp_path, said)
    for path in files_of(tmp_path):
        harm(path, random)
        assert found(kind, tmp_path, said) == whole
        assert ["rebuilt" in line for line in said] == [True]
        said.clear()
