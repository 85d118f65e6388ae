"""The interface of a retriever, and two that wrap others: a cache, and reciprocal-rank fusion.

Source of the fusion: Cormack, Clarke and Büttcher, SIGIR 2009.
"""

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from branchwise.types import RetrievedPassage


class Retriever(Protocol):
    """Searches one corpus. Results are ordered by (−score, id).

    Scores are positive, except those of a search server, which may be logits or distances below 0.

    Attributes:
        digest: Hash of the corpus and of every setting that affects results. That of a search
            server raises `RetrievalError` if the server does not answer.
    """

    @property
    def digest(self) -> str: ...

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the best `top_k` passages for `query`, best first; fewer if fewer match.

        Raises:
            RetrievalError: If the index or the search server could not answer.
        """
        ...


CACHED_ANSWERS = 4096
"""Answers in a cache; the longest unused goes first."""


class CachedRetriever:
    """Answers a repeated query from memory (rollouts of one question repeat queries)."""

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner
        self._answers: OrderedDict[tuple[str, int], tuple[RetrievedPassage, ...]] = OrderedDict()

    @property
    def digest(self) -> str:
        return self._inner.digest

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the inner retriever's answer; errors are not remembered."""
        key = (query, top_k)
        if key not in self._answers:
            self._answers[key] = tuple(await self._inner.search(query, top_k))
            if len(self._answers) > CACHED_ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return list(self._answers[key])


K = 60
"""Damps the weight of the first ranks."""

DEPTH = 100
"""How deep each retriever is read at least. Fixed, so that the best 3 are the first of the
best 10."""


class FusionRetriever:
    """Orders passages by the sum of 1 / (k + rank) over retrievers of one corpus."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self._retrievers = tuple(retrievers)
        text = " ".join(["rrf", str(K), str(DEPTH), *(part.digest for part in retrievers)])
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the best `top_k` passages; `score` is the fused score, at most retrievers / (k +
        1).
        """
        depth = max(top_k, DEPTH)
        rankings = await asyncio.gather(
            *(retriever.search(query, depth) for retriever in self._retrievers)
        )
        return fuse(rankings, K)[:top_k]


def fuse(rankings: Sequence[Sequence[RetrievedPassage]], k: int) -> list[RetrievedPassage]:
    """Returns all passages of `rankings` by (−fused score, id); ranks count from 1."""
    shares: dict[str, list[float]] = {}
    passages: dict[str, RetrievedPassage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, start=1):
            shares.setdefault(passage.id, []).append(1 / (k + rank))
            passages.setdefault(passage.id, passage)
    # fsum is exact, so the order of the retrievers cannot break a tie.
    fused = [
        passages[name].model_copy(update={"score": math.fsum(shares[name])}) for name in shares
    ]
    return sorted(fused, key=lambda passage: (-passage.score, passage.id))
