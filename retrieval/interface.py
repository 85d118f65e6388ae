"""The interface of a retriever, and one that remembers its last answers."""

from collections import OrderedDict
from typing import Protocol

from storage.records import RetrievedPassage


class Retriever(Protocol):
    """Searches one corpus. Results are ordered by (−score, id).

    Scores are positive, except those of a search server, which may be logits or distances below 0.

    Attributes:
        digest: Hash of the corpus and of every setting that affects results.
    """

    @property
    def digest(self) -> str: ...

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the best `top_k` passages for `query`, best first; fewer if fewer match.

        Raises:
            RetrievalError: If the index or the search server could not answer.
        """
        ...


KEPT = 4096
"""Answers that are kept; the longest unused goes first."""


class CachedRetriever:
    """Answers a repeated query from memory (rollouts of one question repeat queries)."""

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner
        self.digest = inner.digest
        self._answers: OrderedDict[tuple[str, int], tuple[RetrievedPassage, ...]] = OrderedDict()

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the inner retriever's answer; errors are not remembered."""
        key = (query, top_k)
        known = self._answers.get(key)
        if known is not None:
            self._answers.move_to_end(key)
            return list(known)
        found = await self._inner.search(query, top_k)
        self._answers[key] = tuple(found)
        if len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        return found
