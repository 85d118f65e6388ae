"""A retriever that remembers its last answers."""

from collections import OrderedDict

from retrieval.interface import Retriever
from storage.records import RetrievedPassage

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
