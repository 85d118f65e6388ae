"""A model and a retriever, in this process, that say what a test tells them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from engines.sampling import Capabilities, Completion, FinishReason, SampleRequest, Usage
from storage.records import RetrievedPassage


@dataclass
class ScriptedEngine:
    """Replies by a function of the request, which may raise; keeps what it was asked."""

    reply: Callable[[SampleRequest], str]
    finish: FinishReason = "stop"
    capabilities: Capabilities = Capabilities(structured_output=True)
    usage: Usage = Usage(100, 0, 10)
    model: str = "scripted"
    digest: str = "digest"
    asked: list[SampleRequest] = field(default_factory=list)

    async def sample(self, request: SampleRequest) -> Completion:
        self.asked.append(request)
        return Completion(self.reply(request), self.finish, self.usage, self.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None


@dataclass
class ScriptedRetriever:
    """Finds by a function of the query, which may raise; keeps its queries."""

    found: Callable[[str], Sequence[RetrievedPassage]] = lambda _: ()
    digest: str = "shelf"
    queries: list[tuple[str, int]] = field(default_factory=list)

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        self.queries.append((query, top_k))
        return list(self.found(query))
