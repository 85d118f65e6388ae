"""Query similarity: cosine, one encoding per text, independent of the other texts."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dense_extra import needs_dense

from branchwise.retrieval import encoder as encoder_module
from branchwise.retrieval.encoder import QuerySimilarity, Vectors
from branchwise.retrieval.settings import DenseSettings

VECTORS = {
    "east": (2, 0),
    "north": (0, 3),
    "west": (-1, 0),
    "north east": (1, 1),
    "nowhere": (0, 0),
}


class Compass:
    """Encoder of compass directions as vectors of any length."""

    def __init__(self, settings: DenseSettings) -> None:
        self.identity = "compass"
        self.encoded: Counter[str] = Counter()
        self.batches: list[int] = []

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        self.encoded.update(queries)
        self.batches.append(len(queries))
        return np.array([VECTORS[query] for query in queries], dtype=np.float32)


@pytest.fixture
def likeness(monkeypatch: pytest.MonkeyPatch) -> QuerySimilarity:
    monkeypatch.setattr(encoder_module, "Encoder", Compass)
    return QuerySimilarity()


def encoder(likeness: QuerySimilarity) -> Compass:
    return likeness._encoder  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("query", "others", "cosine"),
    [
        ("east", ["north"], 0.0),
        ("east", ["west"], -1.0),
        ("east", ["west", "north", "north east"], 0.7071),
        ("east", ["north east", "east"], 1.0),
        ("nowhere", ["east", "nowhere"], 0.0),
    ],
)
def test_similarity_is_the_largest_cosine(
    likeness: QuerySimilarity, query: str, others: list[str], cosine: float
) -> None:
    assert likeness(query, others) == cosine
    assert likeness(query, others[::-1]) == cosine


def test_a_text_is_encoded_once_and_alone(likeness: QuerySimilarity) -> None:
    likeness("east", ["north", "west", "north"])
    likeness("north", ["east", "north east"])
    assert set(encoder(likeness).encoded.values()) == {1}
    # The other texts of a batch change the last bits of a vector.
    assert set(encoder(likeness).batches) == {1}


def test_threads_share_the_encoded_texts(likeness: QuerySimilarity) -> None:
    asked = [(one, [other]) for one in VECTORS for other in VECTORS] * 20
    begun = threading.Barrier(4)

    def ask(part: int) -> list[float]:
        begun.wait()
        return [likeness(*one) for one in asked[part::4]]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(4)))
    alone = QuerySimilarity()
    assert found == [[alone(*one) for one in asked[part::4]] for part in range(4)]
    assert set(encoder(likeness).encoded.values()) == {1}


@needs_dense
@pytest.mark.model
def test_the_packaged_encoder_separates_paraphrases_from_other_questions() -> None:
    likeness = QuerySimilarity()
    asked, reworded = "Who directed Jaws?", "Who was the director of the film Jaws?"
    other = "In which year was the University of Pittsburgh founded?"
    assert likeness(asked, [asked]) == 1.0
    assert likeness(asked, [other, reworded]) > 0.8, "the threshold of the action penalty"
    assert likeness(asked, [other]) < 0.3
    # The same bits after other texts and in another order.
    again = QuerySimilarity()
    again(other, ["something else", reworded])
    assert again(asked, [reworded]) == likeness(asked, [reworded])
    assert again.identity == likeness.identity
