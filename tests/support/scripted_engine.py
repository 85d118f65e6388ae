"""In-process engines and a retriever whose results come from the test."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Self

from branchwise.engines.sampling import Capabilities, Completion, FinishReason, SampleRequest, Usage
from branchwise.types import RetrievedPassage


@dataclass
class ScriptedEngine:
    """Engine that replies with a function of the request, which may raise; records its requests."""

    reply: Callable[[SampleRequest], str]
    finish: FinishReason = "stop"
    capabilities: Capabilities = Capabilities(structured_output=True)
    usage: Usage = Usage(100, 0, 10)
    model: str = "scripted"
    digest: str = "digest"
    asked: list[SampleRequest] = field(default_factory=list)

    async def sample(self, request: SampleRequest) -> Completion:
        self.asked.append(request)
        return Completion(self.reply(request), self.finish, self.usage, self.model, latency_s=0.25)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None


@dataclass
class ScriptedRetriever:
    """Retriever that finds with a function of the query, which may raise; records its queries."""

    found: Callable[[str], Sequence[RetrievedPassage]] = lambda _: ()
    digest: str = "shelf"
    queries: list[tuple[str, int]] = field(default_factory=list)

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        self.queries.append((query, top_k))
        return list(self.found(query))


END_OF_TURN = 0
"""The token that ends a turn of a `SpellingEngine`."""


@dataclass
class SpellingEngine:
    """Engine that writes given texts, one token per character, and stops at stop strings.

    Attributes:
        texts: One text per call, or a function of the request, which may wait or raise. A text that
            ends with "…" counts as cut at the token limit; "…" is not written. Other texts end
            at the first stop string, or with END_OF_TURN.
    """

    texts: Sequence[str] | Callable[[SampleRequest], str | Awaitable[str]]
    model: str = "spelling"
    digest: str = "spelling"
    capabilities: Capabilities = Capabilities(token_ids=True)
    asked: list[SampleRequest] = field(default_factory=list)

    async def sample(self, request: SampleRequest) -> Completion:
        texts, number = self.texts, len(self.asked)
        self.asked.append(request)
        given = texts(request) if callable(texts) else texts[number]
        text = await given if isawaitable(given) else given
        prompt = spelt("".join(m.content for m in request.messages))
        for part in request.prefix or ():
            prompt += spelt(part) if isinstance(part, str) else part
        cut = text.endswith("…")
        stops = () if cut else request.sampling.stop
        end, stop = min(
            ((text.index(s) + len(s), s) for s in stops if s in text), default=(len(text), None)
        )
        text = text.removesuffix("…") if cut else text[:end]
        ids = spelt(text) + (() if cut or stop else (END_OF_TURN,))
        return Completion(
            text.removesuffix(stop) if stop else text,
            "length" if cut else "stop",
            Usage(len(prompt), 0, len(ids)),
            self.model,
            stop_reason=stop,
            prompt_ids=prompt,
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def spelt(text: str) -> tuple[int, ...]:
    """Returns the tokens of a text."""
    return tuple(map(ord, text))
