"""Engines over stored calls.

Every new call is stored before use, so it is paid for once. The replies of an earlier run can be
read again, with the present reader and rules.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Self, cast

from branchwise.base import BudgetExceeded, EndpointError, StorageError, replace_surrogates
from branchwise.storage import Call, Ledger, packed, unpacked

from .endpoint.replies import ReasoningRule, read_again
from .reasoning import READER
from .sampling import (
    Capabilities,
    Completion,
    Engine,
    FinishReason,
    SampleRequest,
    Usage,
    UsageBasis,
    call_key,
    cost_usd,
    prompt_digest,
)
from .settings import Price

BeforeCall = Callable[[], None]
"""Called before every new call; raises `BudgetExceeded` if no more are allowed."""


class _EngineAround:
    """Passes on what another engine is and can do, and opens and closes it."""

    def __init__(self, engine: Engine) -> None:
        self.model = engine.model
        self.digest = engine.digest
        self._engine = engine

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._engine.__aexit__(*exception)


class LedgeredEngine(_EngineAround):
    """An `Engine` that replays stored replies from the ledger.

    Each draw has its own key (`engines.sampling.call_key`), so two draws of one prompt never
    share a result. Simultaneous draws with the same key share one call. Token ids and
    log-probabilities (in float32) are stored and returned only if `SampleRequest.tokens` is set,
    so fresh and replayed replies are identical.
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        price: Price | None = None,
        before_call: BeforeCall | None = None,
    ) -> None:
        super().__init__(engine)
        self._ledger = ledger
        self._price = price
        self._before_call = before_call
        self._under_way: dict[str, asyncio.Task[Completion]] = {}

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion, and stores it before returning it.

        A call is paid for once it is sent. So it continues and is stored if its caller is
        cancelled, for example because another question ended the stage.

        Raises:
            EndpointError: If a call failed. The error is stored; the next request with the same key
                makes a new call.
            BudgetExceeded: If the draw is not stored, and `before_call` allows no new call.
            StorageError: If a reply cannot be stored, or was stored without the token ids that the
                request needs.
        """
        key = call_key(request, self.digest)
        stored = self._ledger.get_for_question(request.identity.question_id, key)
        if stored is not None:
            return self._with_tokens(request, completion_of(stored))
        call = self._under_way.get(key)
        if call is None:
            call = asyncio.create_task(self._call(key, request))
            self._under_way[key] = call
            call.add_done_callback(partial(self._finished, key))
        return self._with_tokens(request, await asyncio.shield(call))

    def _finished(self, key: str, call: asyncio.Task[Completion]) -> None:
        del self._under_way[key]
        if not call.cancelled():
            # Retrieve the error, or asyncio logs "never retrieved" if all callers were cancelled.
            call.exception()

    def _with_tokens(self, request: SampleRequest, completion: Completion) -> Completion:
        """Returns the completion if it has the requested tokens."""
        if request.tokens and completion.token_ids is None:
            identity = request.identity
            raise StorageError(
                f"{self._ledger.path}: the call {identity.path!r} of question "
                f"{identity.question_id!r} was stored without token ids. Start a new run, which "
                "stores them."
            )
        return completion

    async def _call(self, key: str, request: SampleRequest) -> Completion:
        if self._before_call is not None:
            self._before_call()
        try:
            completion = await self._engine.sample(request)
        except EndpointError as error:
            nothing = replace(_EMPTY, attempts=error.attempts)
            await self._ledger.put(self._row(key, request, nothing, str(error)))
            raise
        call = self._row(key, request, completion, None)
        await self._ledger.put(call)
        return completion_of(call)  # exactly what a replay returns

    def _row(
        self, key: str, request: SampleRequest, completion: Completion, error: str | None
    ) -> Call:
        identity, usage, stop = request.identity, completion.usage, completion.stop_reason
        tokens = completion if request.tokens else _EMPTY
        return Call(
            key=key,
            role=identity.role,
            model=replace_surrogates(completion.model or self.model),
            policy_digest=self.digest,
            question_id=identity.question_id,
            path=identity.path,
            draw=identity.draw,
            prompt_digest=prompt_digest(request),
            text=replace_surrogates(completion.text),
            finish_reason=completion.finish_reason,
            stop_reason=None if stop is None else replace_surrogates(stop),
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            usage_basis=usage.basis,
            cost_usd=None if error is not None else self._cost(completion),
            latency_s=float(completion.latency_s),  # as the column returns it, for checksums
            attempts=completion.attempts,
            error=error,
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            reasoning=replace_surrogates(completion.reasoning),
            raw=completion.raw,
            reader=READER,
            prompt_ids=packed("i", tokens.prompt_ids),
            token_ids=packed("i", tokens.token_ids),
            logprobs=packed("f", tokens.logprobs),
        )

    def _cost(self, completion: Completion) -> float | None:
        """Returns the cost in US dollars; a reply that was read again cost nothing this time."""
        return cost_usd(completion.usage, self._price) if completion.attempts else 0.0

    async def __aexit__(self, *exception: object) -> None:
        try:
            if self._under_way:
                await asyncio.wait(self._under_way.values())
        finally:
            await super().__aexit__(*exception)


_EMPTY = Completion(text="", finish_reason="unknown", usage=Usage(), model="")
"""Source of empty fields: of a failed call, and of tokens that were not requested."""


def completion_of(call: Call) -> Completion:
    """Returns a stored call as the completion that it was."""
    return Completion(
        text=call.text,
        finish_reason=cast(FinishReason, call.finish_reason),
        usage=Usage(
            call.input_tokens,
            call.cached_tokens,
            call.output_tokens,
            cast(UsageBasis, call.usage_basis),
        ),
        model=call.model,
        stop_reason=call.stop_reason,
        reasoning=call.reasoning,
        raw=call.raw,
        prompt_ids=unpacked("i", call.prompt_ids),
        token_ids=unpacked("i", call.token_ids),
        logprobs=unpacked("f", call.logprobs),
        latency_s=call.latency_s,
        attempts=call.attempts,
    )


@dataclass(frozen=True)
class NoCallEngine:
    """Replaces the original engine inside a `LedgeredEngine`: only stored calls succeed.

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


class RereadingEngine(_EngineAround):
    """Wraps an engine: a call that the earlier run made is read again instead of being repeated."""

    def __init__(self, engine: Engine, earlier: Ledger, earlier_digest: str) -> None:
        """Wraps `engine`.

        Args:
            earlier: Open ledger of the earlier run.
            earlier_digest: Digest under which it has the model's calls.
        """
        super().__init__(engine)
        self._earlier = earlier
        self._earlier_digest = earlier_digest

    async def sample(self, request: SampleRequest) -> Completion:
        """Returns the stored reply, read again; draws one if the earlier run made no such call.

        Raises:
            EndpointError: If a new call failed.
            StorageError: If a stored call is damaged.
        """
        key = call_key(request, self._earlier_digest)
        call = self._earlier.get_for_question(request.identity.question_id, key)
        if call is None:
            return await self._engine.sample(request)
        stored = completion_of(call)
        if request.tokens or request.prefix:  # such replies are not told from reasoning
            return replace(stored, attempts=0)
        rule: ReasoningRule = getattr(self._engine, "reasoning_rule", "drop")
        return read_again(stored, rule)
