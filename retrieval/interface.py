"""The interface of a retriever."""

from typing import Protocol

from storage.records import RetrievedPassage


class Retriever(Protocol):
    """Searches one corpus. Results are ordered by (−score, id) and have no zero scores.

    Attributes:
        digest: hash of the corpus and of every setting that decides what a query returns.
    """

    @property
    def digest(self) -> str: ...

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the best `top_k` passages for `query`, best first; fewer if fewer match.

        Raises:
            RetrievalError: the index or the search server could not answer.
        """
        ...
