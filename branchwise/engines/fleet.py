"""One model on several servers that know nothing of each other.

A question stays with one server, because its calls share a prefix that the server caches. If the
server fails, its questions move, and only its calls in progress are repeated. It gets questions
again as soon as it answers.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

from branchwise.base import BranchwiseError, ConfigError, EndpointError, Log, ServerLost

from .sampling import Capabilities, Completion, Engine, SampleRequest

if TYPE_CHECKING:
    from .endpoint.replies import ReasoningRule

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Shortest and longest pause between two attempts to reach a server that failed; they double."""
PATIENCE_S = 600.0
"""Longest time without any server, in seconds, after which the run ends."""
MOST_LOST_SERVERS = 3
"""Servers that may end during one call. A prompt that crashes vLLM would else end them forever: a
server that loads for minutes never exceeds its limit on deaths per ten minutes."""
_RECHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What must be equal on all servers of a fleet.

    Attributes:
        model: Whether the server lists the model; None if it lists none.
        context: Context length in tokens; None if it does not say.
        template: Digest of a chat's token ids; None if it returns none.
    """

    capabilities: Capabilities
    model: bool | None = None
    context: int | None = None
    template: str | None = None

    def differences(self, other: Self) -> list[str]:
        """Returns the names of the properties that differ; an unknown one equals any."""
        names = ("model", "context", "template", "capabilities")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return [name for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]]


class ServerEngine(Engine, Protocol):
    """An engine at one server."""

    @property
    def in_progress(self) -> int:
        """Number of calls that the server works on."""

    @property
    def reasoning_rule(self) -> "ReasoningRule":
        """How replies are separated from reasoning."""

    async def served_model(self) -> ServedModel:
        """Returns what the server says about its model.

        Raises:
            EndpointError: If it does not answer.
        """


@dataclass(eq=False)
class Replica:
    """One server of a fleet, and its work.

    Attributes:
        name: Its address.
        fault: Why it gets no questions; None while it works.
        open: Calls in progress or waiting, by question.
        answered: Number of completions.
        input_tokens, cached_tokens: Tokens of their prompts, and those of them from the cache.
    """

    name: str
    engine: ServerEngine
    fault: EndpointError | None = None
    open: Counter[str] = field(default_factory=Counter)
    calls: set[asyncio.Task[Completion]] = field(default_factory=set)
    answered: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    entered: bool = False

    @property
    def load(self) -> tuple[int, int]:
        """Open questions, and their calls."""
        return len(self.open), len(self.calls)

    @property
    def queue(self) -> int:
        """Calls that wait for a slot."""
        return max(0, len(self.calls) - self.engine.in_progress)

    def describe(self, seconds: float) -> str:
        """Returns its state, queue, rate over so many seconds, and share of cached tokens."""
        state = "failed" if self.fault is not None else "works"
        cached = self.cached_tokens / self.input_tokens if self.input_tokens else 0.0
        return (
            f"{state}, {len(self.open)} questions, {self.queue} calls waiting, {self.answered:,} "
            f"answered ({self.answered / seconds:,.1f}/s), {cached:.0%} of prompt tokens cached"
        )


class FleetEngine:
    """An `Engine` of several servers with one model; use inside `async with`.

    Attributes:
        replicas: The servers.
        repeated: Number of calls that were repeated at another server.
    """

    def __init__(
        self,
        engines: Mapping[str, ServerEngine],
        log: Log | None = None,
        before_call: Callable[[], None] | None = None,
    ) -> None:
        """Connects to nothing; entering the block does.

        Args:
            engines: Engines by address, all with the same model and digest. They end calls at once
                if their server fails (`RetryPolicy.gives_way`).
            log: Callback for messages about servers that fail and answer again.
            before_call: Called every second while no server works; raises `BudgetExceeded` if the
                run is to stop.
        """
        first = next(iter(engines.values()))
        self.model, self.digest = first.model, first.digest
        self.replicas = tuple(Replica(name, engine) for name, engine in engines.items())
        self.repeated = 0
        self._log: Log = log or (lambda _: None)
        self._before_call = before_call or (lambda: None)
        self._replica_of: dict[str, Replica] = {}
        self._served: ServedModel | None = None
        self._recoveries: set[asyncio.Task[None]] = set()
        self._recovered = asyncio.Event()
        self._began = time.monotonic()

    def describe(self) -> dict[str, str]:
        """Returns the state and work of each server, by address."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        return {replica.name: replica.describe(seconds) for replica in self.replicas}

    @property
    def capabilities(self) -> Capabilities:
        return (
            self.replicas[0].engine.capabilities
            if self._served is None
            else self._served.capabilities
        )

    @property
    def reasoning_rule(self) -> "ReasoningRule":
        """How replies are separated from reasoning."""
        return next(r for r in self.replicas if r.entered).engine.reasoning_rule

    async def __aenter__(self) -> Self:
        """Enters all engines at once; goes on without servers that do not answer.

        Raises:
            ConfigError: If servers differ, or a setting is wrong.
            EndpointError: If none answers.
        """
        try:
            results = await asyncio.gather(
                *(self._enter(replica) for replica in self.replicas), return_exceptions=True
            )
            served = dict[Replica, ServedModel]()
            for replica, result in zip(self.replicas, results, strict=True):
                if isinstance(result, ServedModel):
                    served[replica] = result
                elif isinstance(result, EndpointError):
                    replica.fault = result
                else:
                    raise result
            if not served:
                raise self._all_lost()
            self._served = next(iter(served.values()))
            self._check_equal(served)
        except BaseException:
            await self.__aexit__()
            raise
        for replica in self.replicas:
            if replica.fault is not None:
                self._log(f"{replica.fault}; its questions go to the other servers")
                self._start_recovery(replica)
        return self

    async def __aexit__(self, *exception: object) -> None:
        for recovery in self._recoveries:
            recovery.cancel()
        await asyncio.gather(*self._recoveries, return_exceptions=True)
        entered = [replica for replica in self.replicas if replica.entered]
        await asyncio.gather(*(replica.engine.__aexit__(*exception) for replica in entered))

    def require_all(self) -> None:
        """Checks that all servers work.

        Raises:
            EndpointError: If some do not; gives the fault of each.
        """
        if faults := [str(r.fault) for r in self.replicas if r.fault is not None]:
            raise EndpointError("\n".join(faults), fatal=True)

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion at the question's server (see `engines.sampling.Engine.sample`).

        Raises:
            EndpointError: If the call failed at two servers, ended `MOST_LOST_SERVERS`, or no
                server has worked for `PATIENCE_S` (fatal).
            BudgetExceeded: If no server works and the run is to stop.
        """
        question, attempts, ended, has_failed = request.identity.question_id, 0, 0, False
        while True:
            replica = await self._replica_for(question)
            try:
                completion = await self._call(replica, request)
            except ServerLost as lost:
                attempts, ended = attempts + lost.attempts, ended + lost.ended
                self._take_out(replica, lost)
                if ended == MOST_LOST_SERVERS:
                    raise EndpointError(
                        f"{ended} servers ended during this call: {lost}", attempts=attempts
                    ) from None
            except EndpointError as error:
                attempts += error.attempts
                if error.fatal:
                    self._take_out(replica, error)
                elif has_failed or error.attempts == 1 or not self._others(replica):
                    # After one attempt, the request is at fault, not the server.
                    error.attempts = attempts
                    raise
                else:
                    has_failed = True
                    self._replica_of[question] = min(self._others(replica), key=_load)
            else:
                return replace(completion, attempts=attempts + completion.attempts)
            self.repeated += 1

    async def _call(self, replica: Replica, request: SampleRequest) -> Completion:
        """Draws at one server.

        Raises:
            ServerLost: Also if another call found the server lost first.
        """
        question = request.identity.question_id
        call = asyncio.ensure_future(replica.engine.sample(request))
        replica.calls.add(call)
        replica.open[question] += 1
        try:
            completion = await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if replica.fault is None or (task is not None and task.cancelling()):
                raise
            raise ServerLost(str(replica.fault)) from None
        finally:
            replica.calls.discard(call)
            replica.open[question] -= 1
            if not replica.open[question]:
                del replica.open[question]
        replica.answered += 1
        replica.input_tokens += completion.usage.input_tokens
        replica.cached_tokens += completion.usage.cached_tokens
        return completion

    async def _replica_for(self, question: str) -> Replica:
        """Returns the question's server; chooses one if it has none, or lost it."""
        replica = self._replica_of.get(question)
        if replica is None or replica.fault is not None:
            await self._wait_for_any()
            replica = self._replica_of.get(question)  # another call may have chosen meanwhile
        if replica is None or replica.fault is not None:
            replica = min(self._working(), key=_load)
            self._replica_of[question] = replica
        return replica

    async def _wait_for_any(self) -> None:
        """Waits until a server works."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while not self._working():
            self._before_call()
            outage = any(isinstance(replica.fault, ServerLost) for replica in self.replicas)
            if not outage or asyncio.get_running_loop().time() > until:
                raise self._all_lost()
            self._recovered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_RECHECK_S):
                    await self._recovered.wait()

    def _working(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.fault is None]

    def _others(self, than: Replica) -> list[Replica]:
        return [replica for replica in self._working() if replica is not than]

    def _all_lost(self) -> EndpointError:
        if len({str(replica.fault) for replica in self.replicas}) == 1:
            return EndpointError(str(self.replicas[0].fault), fatal=True)
        faults = "".join(f"\n  {replica.name}: {replica.fault}" for replica in self.replicas)
        return EndpointError(
            f"none of {len(self.replicas)} servers works. Earlier replies are stored; once one "
            f"works, rerun the same command to resume:{faults}",
            fatal=True,
        )

    def _take_out(self, replica: Replica, fault: EndpointError) -> None:
        """Moves a server's questions to others; its calls in progress are repeated there."""
        if replica.fault is not None:
            return
        replica.fault = fault
        # The failed call has left `calls` already.
        self._log(
            f"{fault}; its {len(replica.open) + 1} open questions move to other servers, and "
            f"{len(replica.calls) + 1} calls in progress are repeated there"
        )
        for call in replica.calls:
            call.cancel()
        self._start_recovery(replica)

    def _start_recovery(self, replica: Replica) -> None:
        recovery = asyncio.create_task(self._recover(replica))
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, replica: Replica) -> None:
        """Gives a server questions again once it answers with the same model as before."""
        has_told = False
        for n in itertools.count():
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S))
            try:
                served = await self._enter(replica)
                self._check_equal({replica: served})
            except ConfigError as error:
                if not has_told:
                    self._log(f"{replica.name} answers, but gets no questions: {error}")
                has_told = True
                continue
            except BranchwiseError:
                continue
            replica.fault = None
            self._recovered.set()
            self._log(f"{replica.name} answers again")
            return

    async def _enter(self, replica: Replica) -> ServedModel:
        if not replica.entered:
            await replica.engine.__aenter__()
            replica.entered = True
        return await replica.engine.served_model()

    def _check_equal(self, served: Mapping[Replica, ServedModel]) -> None:
        """Checks that servers are like the first one.

        Raises:
            ConfigError: If some differ.
        """
        assert self._served is not None
        differences = [
            f"  {replica.name}: another {', '.join(names)}"
            for replica, model in served.items()
            if (names := self._served.differences(model))
        ]
        if differences:
            raise ConfigError(
                f"{self.model}: the servers of one model must serve the same; these differ from "
                f"{self.replicas[0].name}:\n" + "\n".join(differences)
            )


def each_server(engine: Engine) -> list[Engine]:
    """Returns the engines of a fleet's servers that work; another engine alone."""
    if not isinstance(engine, FleetEngine):
        return [engine]
    return [replica.engine for replica in engine.replicas if replica.fault is None]


def _load(replica: Replica) -> tuple[int, int]:
    return replica.load
