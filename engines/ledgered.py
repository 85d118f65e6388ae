"""An engine behind the ledger: no call is paid for twice, none is used before it is stored."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self, get_args

from engines.cost import cost_usd
from engines.sampling import (
    Capabilities,
    Completion,
    Engine,
    FinishReason,
    SampleRequest,
    Usage,
    UsageBasis,
    call_key,
    prompt_digest,
)
from engines.settings import Price
from storage.calls import Call
from storage.errors import EndpointError
from storage.ledger import Ledger
from storage.text import storable

BeforeCall = Callable[[], None]
"""Asked before every new call; raises `BudgetExceeded` where none may be made any more."""


class LedgeredEngine:
    """An `Engine` that answers from the ledger what it has answered before.

    Each draw has its own key (`engines.sampling.call_key`), so two draws of one prompt never
    share a result. Draws of one key that run at the same time share one call. Replies carry no
    token ids and no log probabilities, fresh or replayed, because the ledger keeps none: a
    resumed run sees what the first one saw.

    Attributes:
        hits: draws that made no call (replayed, or shared with a call under way).
        misses: draws that made one.
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        price: Price | None = None,
        before_call: BeforeCall | None = None,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._price = price
        self._before_call = before_call
        self._under_way: dict[str, asyncio.Future[Completion]] = {}
        self.hits = 0
        self.misses = 0

    @property
    def model(self) -> str:
        return self._engine.model

    @property
    def digest(self) -> str:
        return self._engine.digest

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._engine.capabilities, token_ids=False)

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion, which is stored before it is returned.

        Raises:
            EndpointError: a call failed; the error is stored, and the call is made again when
                it is asked for again.
            BudgetExceeded: the draw is not stored, and `before_call` allows no new call.
            StorageError: a reply could not be stored.
        """
        key = call_key(request, self.digest)
        while True:
            stored = self._ledger.recall(request.identity.question_id, key)
            if stored is not None:
                return self._counted(_completion(stored), replayed=True)
            under_way = self._under_way.get(key)
            if under_way is None:
                return self._counted(await self._lead(key, request), replayed=False)
            await asyncio.wait([under_way])
            # Cancelled with the task that made the call: then this one makes it.
            if not under_way.cancelled():
                return self._counted(under_way.result(), replayed=True)

    def _counted(self, completion: Completion, *, replayed: bool) -> Completion:
        self.hits += replayed
        self.misses += not replayed
        return completion

    async def _lead(self, key: str, request: SampleRequest) -> Completion:
        """Make the call for everybody who asks for this key meanwhile."""
        shared: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._under_way[key] = shared
        try:
            completion = await self._call(key, request)
            shared.set_result(completion)
            return completion
        except Exception as error:
            shared.set_exception(error)
            shared.exception()  # seen here, so asyncio does not complain if nobody shared it
            raise
        finally:
            del self._under_way[key]
            shared.cancel()  # does nothing once it is settled

    async def _call(self, key: str, request: SampleRequest) -> Completion:
        if self._before_call is not None:
            self._before_call()
        try:
            completion = await self._engine.sample(request)
        except EndpointError as error:
            nothing = replace(_NOTHING, attempts=error.attempts)
            await self._ledger.put(self._row(key, request, nothing, str(error)))
            raise
        completion = _as_replayed(completion)
        await self._ledger.put(self._row(key, request, completion, None))
        return completion

    def _row(
        self, key: str, request: SampleRequest, completion: Completion, error: str | None
    ) -> Call:
        identity, usage = request.identity, completion.usage
        return Call(
            key=key,
            role=identity.role,
            model=completion.model or self.model,
            policy_digest=self.digest,
            question_id=identity.question_id,
            path=identity.path,
            draw=identity.draw,
            prompt_digest=prompt_digest(request),
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            usage_basis=usage.basis,
            cost_usd=cost_usd(usage, self._price) if error is None else None,
            latency_s=float(completion.latency_s),  # as the column gives it back, see checksums
            attempts=completion.attempts,
            error=error,
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._engine.__aexit__(*exception)


_NOTHING = Completion(text="", finish_reason="unknown", usage=Usage(), model="")
"""Stands in a row whose call failed."""


def _as_replayed(completion: Completion) -> Completion:
    """The completion as a replay would give it."""
    stop = completion.stop_reason
    return replace(
        completion,
        text=storable(completion.text),
        stop_reason=None if stop is None else storable(stop),
        model=storable(completion.model),
        prompt_ids=None,
        token_ids=None,
        logprobs=None,
    )


def _completion(call: Call) -> Completion:
    return Completion(
        text=call.text,
        finish_reason=_finish_reason(call.finish_reason),
        usage=Usage(
            call.input_tokens, call.cached_tokens, call.output_tokens, _basis(call.usage_basis)
        ),
        model=call.model,
        stop_reason=call.stop_reason,
        latency_s=call.latency_s,
        attempts=call.attempts,
    )


def _basis(stored: str) -> UsageBasis:
    known: tuple[UsageBasis, ...] = get_args(UsageBasis)
    return next((basis for basis in known if basis == stored), "bytes")


def _finish_reason(stored: str) -> FinishReason:
    known: tuple[FinishReason, ...] = get_args(FinishReason)
    return next((reason for reason in known if reason == stored), "unknown")
