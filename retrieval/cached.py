"""A retriever that remembers its last answers."""

from collections import OrderedDict

from retrieval.interface import Retriever
from storage.records import RetrievedPassage


class CachedRetriever:
    """Answers a repeated query from memory (rollouts of one question repeat queries)."""

    def __init__(self, inner: Retriever, size: int = 4096) -> None:
        """Wraps `inner`.

        Args:
            inner: Retriever to cache.
            size: how many answers are kept, the longest unused going first.
        """
        self._inner = inner
        self._size = size
        self._answers: OrderedDict[tuple[str, int], tuple[RetrievedPassage, ...]] = OrderedDict()

    @property
    def digest(self) -> str:
        """The inner retriever's digest: remembering changes no answer."""
        return self._inner.digest

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the inner retriever's answer; errors are not remembered."""
        key = (query, top_k)
        known = self._answers.get(key)
        if known is not None:
            self._answers.move_to_end(key)
            return list(known)
        found = await self._inner.search(query, top_k)
        self._answers[key] = tuple(found)
        if len(self._answers) > self._size:
            self._answers.popitem(last=False)
        return found
