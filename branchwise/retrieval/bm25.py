"""BM25 over titles and texts (Lucene's variant, k1 = 1.5, b = 0.75), through bm25s.

bm25s weighs the terms and stores the index; ranking is ours, because its own returns passages
that share no word with the query, orders ties by chance, and raises if k exceeds the corpus.
"""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from branchwise.types import Passage, RetrievedPassage

from .passages import Scores, retrieved, top_k_rows

TOKENISER = "words-2"
"""Version of `tokenize`; part of the index key."""

_WORD = re.compile(r"\w+")
_STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for from if in into is it its of on or s such that the "
        "their then there these they this to was were will with",
    )
)


def tokenize(text: str) -> list[str]:
    """Returns lower-case words without accents and English stopwords.

    Single letters stay ("J. K. Rowling" is three words). Text of stopwords alone keeps them, so
    that a passage titled "It" can still be found.
    """
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in decomposed if not unicodedata.combining(char))
    words = _WORD.findall(text.lower())
    return [word for word in words if word not in _STOPWORDS] or words


def build_bm25(passages: Sequence[Passage], folder: Path) -> None:
    """Writes the index of `passages` (in index order) into `folder`."""
    import bm25s

    # Apart, because a title of stopwords alone keeps them.
    words = [[*tokenize(passage.title), *tokenize(passage.text)] for passage in passages]
    # A sorted vocabulary gives the same files in every process (set order does not). The empty
    # word stands first so that a corpus without a single word still has a vocabulary.
    vocabulary = {word: i for i, word in enumerate(["", *sorted(set().union(*words))])}
    ids = [[vocabulary[word] for word in document] for document in words]
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    with np.errstate(invalid="ignore"):  # a corpus without a single word has mean length 0
        index.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    index.save(folder, show_progress=False)


class Bm25Retriever:
    """Searches a memory-mapped BM25 index; about a millisecond, so it runs on the event loop."""

    def __init__(self, folder: Path, passages: Sequence[Passage], digest: str) -> None:
        """Memory-maps an intact index of `build_bm25` (`storage.cache`).

        Args:
            folder: the index.
            passages: the same passages, in the same order.
            digest: Hash of the corpus and of every setting that affects results.
        """
        import bm25s

        index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        self._weights = index.scores["data"]
        self._rows = index.scores["indices"]
        self._starts = np.asarray(index.scores["indptr"])
        self._vocabulary: dict[str, int] = index.vocab_dict
        self._passages = passages
        self.digest = digest

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the best `top_k` passages by (−score, id); none that shares no word with the
        query.
        """
        scores = self._scores(query)
        rows = top_k_rows(scores, top_k)
        return retrieved(self._passages, rows, scores[rows])

    def _scores(self, query: str) -> Scores:
        scores = np.zeros(len(self._passages), dtype=np.float32)
        for word in tokenize(query):
            column = self._vocabulary.get(word)
            if column is not None:
                start, end = self._starts[column], self._starts[column + 1]
                # A passage occurs once in a word's column, so plain fancy indexing may add.
                scores[self._rows[start:end]] += self._weights[start:end]
        return scores
