"""The interface of a retriever."""

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
