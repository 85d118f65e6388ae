"""A model and a retriever that answer at once, in this process."""

from typing import Self
from zlib import crc32

from benchmarks.simulated_models import reply, tokens
from branchwise.engines.sampling import Capabilities, Completion, SampleRequest, Usage
from branchwise.types import RetrievedPassage


class InstantModel:
    """The simulated model without an endpoint; the reply depends on the request's identity."""

    capabilities = Capabilities(structured_output=True, json_schema=True)

    def __init__(self, model: str) -> None:
        self.model = self.digest = model

    async def sample(self, request: SampleRequest) -> Completion:
        """Answers at once."""
        identity = request.identity
        chance = crc32(f"{identity.question_id}/{identity.path}/{identity.draw}".encode()).to_bytes(
            4, "big"
        )
        system, user = request.messages[0].content, request.messages[-1].content
        text = reply(self.model, system, user, chance)
        usage = Usage(tokens(system) + tokens(user), 0, tokens(text))
        return Completion(text, "stop", usage, self.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None


class InstantRetriever:
    """The same passages for every query."""

    digest = "instant"
    _passages = tuple(
        RetrievedPassage(id=f"p{i}", title=f"Town {i}", text=f"Fact {i}. " * 20, score=1.0)
        for i in range(3)
    )

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns the first `top_k`."""
        return list(self._passages[:top_k])
