"""An engine that makes no calls; inside a `LedgeredEngine`, only calls in the ledger succeed."""

from dataclasses import dataclass
from typing import Self

from base.errors import BudgetExceeded
from engines.sampling import Capabilities, Completion, SampleRequest


@dataclass(frozen=True)
class NoCallEngine:
    """Replaces the original engine inside a `LedgeredEngine`.

    `model`, `digest` and `capabilities` are the original engine's, because they decide the calls'
    keys.
    """

    model: str
    digest: str
    capabilities: Capabilities

    async def sample(self, request: SampleRequest) -> Completion:
        """Fails: any call that reaches this engine is missing from the ledger.

        Raises:
            BudgetExceeded: Always.
        """
        raise BudgetExceeded(
            f"a call for question {request.identity.question_id} is not in the ledger"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        pass
