"""Reads the stored replies of an earlier run again, with the present reader and rules."""

from dataclasses import dataclass, replace
from typing import Self

from branchwise.storage import Ledger

from .endpoint.replies import ReasoningRule, read_again
from .ledgered import completion_of
from .sampling import Capabilities, Completion, Engine, SampleRequest, call_key


@dataclass(frozen=True)
class RereadingEngine:
    """Wraps an engine: a call that the earlier run made is read again instead of being repeated.

    Attributes:
        earlier: Open ledger of the earlier run.
        earlier_digest: Digest under which it has the model's calls.
    """

    engine: Engine
    earlier: Ledger
    earlier_digest: str

    @property
    def model(self) -> str:
        return self.engine.model

    @property
    def digest(self) -> str:
        return self.engine.digest

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    async def sample(self, request: SampleRequest) -> Completion:
        """Returns the stored reply, read again; draws one if the earlier run made no such call.

        Raises:
            EndpointError: If a new call failed.
            StorageError: If a stored call is damaged.
        """
        key = call_key(request, self.earlier_digest)
        call = self.earlier.get_for_question(request.identity.question_id, key)
        if call is None:
            return await self.engine.sample(request)
        stored = completion_of(call)
        if request.tokens or request.prefix:  # such replies are not separated from reasoning
            return replace(stored, attempts=0)
        return read_again(stored, self._rule)

    @property
    def _rule(self) -> ReasoningRule:
        rule: ReasoningRule = getattr(self.engine, "reasoning_rule", "drop")
        return rule

    async def __aenter__(self) -> Self:
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.engine.__aexit__(*exception)
