"""One model on several simulated servers, in virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest
from virtual_time import in_virtual_time, now

from branchwise.base.errors import BudgetExceeded, ConfigError, EndpointError, ServerLost
from branchwise.engines.endpoint.retry import RetryPolicy, TransientError
from branchwise.engines.endpoint.traffic import RequestScheduler
from branchwise.engines.fleet import (
    MOST_LOST_SERVERS,
    PATIENCE_S,
    FleetEngine,
    ServedModel,
    each_server,
)
from branchwise.engines.sampling import (
    CallIdentity,
    Capabilities,
    Completion,
    SampleRequest,
    Sampling,
    Usage,
)

CAPABILITIES = Capabilities(json_schema=True)
LATENCY_S, TIMEOUT_S = 2.0, 60.0


def request(question: str, draw: int = 0) -> SampleRequest:
    return SampleRequest((), Sampling(), CallIdentity("policy", question, "tree/0", draw))


@dataclass
class Server:
    """A server behind the real scheduler of calls; its replies depend only on the request.

    Attributes:
        state: "works", "refuses" connections or "hangs".
        meet: May raise a fault, given the request.
        received: (question, draw) of every attempt that reached it.
        under_way: Number of calls being answered.
    """

    name: str
    state: str = "works"
    meet: Callable[[SampleRequest], None] = lambda _: None
    served: ServedModel = ServedModel(CAPABILITIES, True, 4096, "template")
    latency_s: float = LATENCY_S
    model: str = "policy"
    digest: str = "digest"
    reasoning_rule: Any = "drop"
    capabilities: Capabilities = CAPABILITIES
    received: list[tuple[str, int]] = field(default_factory=list)
    under_way: int = 0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = False

    def __post_init__(self) -> None:
        policy = RetryPolicy(gives_way=True)
        self.scheduler = RequestScheduler(self.name, 256, 900.0, policy)

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False

    @property
    def in_progress(self) -> int:
        return self.under_way

    async def served_model(self) -> ServedModel:
        if self.state != "works":
            raise EndpointError(f"nothing answers at {self.name}", fatal=True)
        self.scheduler.answered()
        return self.served

    def stop(self) -> int:
        """Cuts all connections, and refuses new ones; returns the number of cut calls."""
        self.state, cut = "refuses", self.under_way
        self.stopped.set()
        return cut

    def start(self) -> None:
        self.state = "works"
        self.stopped.clear()

    async def sample(self, request: SampleRequest) -> Completion:
        completion, attempts = await self.scheduler.send(lambda: self._attempt(request))
        return replace(completion, attempts=attempts)

    async def _attempt(self, request: SampleRequest) -> Completion:
        if self.state == "refuses":
            raise TransientError(EndpointError(f"{self.name} refuses", fatal=True), "refused")
        self.received.append((request.identity.question_id, request.identity.draw))
        self.under_way += 1
        try:
            self.meet(request)
            if self.state == "hangs":
                await asyncio.sleep(TIMEOUT_S)
                raise TransientError(EndpointError(f"{self.name} did not answer"))
            try:
                async with asyncio.timeout(self.latency_s):
                    await self.stopped.wait()
            except TimeoutError:
                identity = request.identity
                text = f"{identity.question_id} {identity.draw}"
                return Completion(text, "stop", Usage(100, 80, 5), self.model)
            raise TransientError(EndpointError(f"{self.name}: connection lost"))
        finally:
            self.under_way -= 1


def fleet_of(*servers: Server, **options: Any) -> tuple[FleetEngine, list[str]]:
    messages: list[str] = []
    return FleetEngine({s.name: s for s in servers}, messages.append, **options), messages


def three() -> tuple[Server, Server, Server]:
    return Server("http://a"), Server("http://b"), Server("http://c")


async def answer(fleet: FleetEngine, question: str, calls: int = 10) -> list[str]:
    return [(await fleet.sample(request(question, draw))).text for draw in range(calls)]


async def answer_all(fleet: FleetEngine, questions: int, calls: int = 10) -> list[list[str]]:
    works = (answer(fleet, f"q{n}", calls) for n in range(questions))
    return await asyncio.gather(*works)


def expected(questions: int, calls: int = 10) -> list[list[str]]:
    return [[f"q{n} {draw}" for draw in range(calls)] for n in range(questions)]


def calls_made(*servers: Server) -> Counter[tuple[str, int]]:
    return sum((Counter(server.received) for server in servers), Counter[tuple[str, int]]())


def test_a_question_stays_with_one_server_and_all_have_as_many() -> None:
    async def run() -> None:
        servers = three()
        fleet, _ = fleet_of(*servers)
        async with fleet:
            assert await answer_all(fleet, 30) == expected(30)
        homes = [{question for question, _ in server.received} for server in servers]
        assert [len(questions) for questions in homes] == [10, 10, 10]
        assert not set.intersection(*homes), "no question went to two servers"
        assert fleet.repeated == 0
        assert not any(server.is_open for server in servers)
        described = fleet.describe()["http://a"]
        assert "works" in described
        assert "100 answered" in described
        assert "80% of prompt tokens cached" in described

    in_virtual_time(run())


def test_a_slow_server_gets_fewer_questions() -> None:
    async def run() -> None:
        slow, fast = Server("http://slow", latency_s=20.0), Server("http://fast")
        fleet, _ = fleet_of(slow, fast)
        async with fleet:
            working = asyncio.Semaphore(20)

            async def one(question: str) -> None:
                async with working:
                    await answer(fleet, question, 5)

            await asyncio.gather(*(one(f"q{n}") for n in range(100)))
        assert 3 * len(set(slow.received)) < len(set(fast.received))

    in_virtual_time(run())


@pytest.mark.parametrize("at_s", [1.0, 2.0, 5.5, 13.0])
def test_a_dead_server_costs_its_calls_in_progress_and_no_question(at_s: float) -> None:
    async def run() -> None:
        a, b, c = three()
        fleet, messages = fleet_of(a, b, c)
        async with fleet:
            answering = asyncio.create_task(answer_all(fleet, 30))
            await asyncio.sleep(at_s)
            cut = b.stop()
            assert await answering == expected(30)
        made = calls_made(a, b, c)
        assert made.total() - len(made) <= cut == 10, "only calls in progress are repeated"
        assert fleet.repeated <= cut
        assert len([m for m in messages if "http://b" in m and "10 calls in progress" in m]) == 1

    in_virtual_time(run())


def test_a_server_that_answers_again_gets_questions_again() -> None:
    async def run() -> None:
        a, b, c = three()
        fleet, messages = fleet_of(a, b, c)
        async with fleet:
            first = asyncio.create_task(answer_all(fleet, 9))
            await asyncio.sleep(1.0)
            b.stop()
            await first
            assert len(each_server(fleet)) == 2
            assert "failed" in fleet.describe()["http://b"]
            b.start()
            await asyncio.sleep(60.0)
            assert len(each_server(fleet)) == 3
            before = len(b.received)
            await asyncio.gather(*(answer(fleet, f"new{n}") for n in range(9)))
            assert len(b.received) == before + 30
        assert messages[-1] == "http://b answers again"

    in_virtual_time(run())


def test_a_server_that_returns_with_another_model_stays_out() -> None:
    async def run() -> None:
        a, b, _ = three()
        fleet, messages = fleet_of(a, b)
        async with fleet:
            first = asyncio.create_task(answer_all(fleet, 4))
            await asyncio.sleep(1.0)
            b.stop()
            await first
            b.served = replace(b.served, template="another")
            b.start()
            await asyncio.sleep(300.0)
            assert each_server(fleet) == [a]
        (told,) = [m for m in messages if "gets no questions" in m]
        assert "http://b: another template" in told

    in_virtual_time(run())


def test_a_server_that_hangs_is_left() -> None:
    async def run() -> None:
        a, b, c = three()
        b.state = "works"
        fleet, _ = fleet_of(a, b, c)
        async with fleet:
            answering = asyncio.create_task(answer_all(fleet, 60))
            await asyncio.sleep(3.0)
            b.state = "hangs"
            assert await answering == expected(60)
            assert now() < 3 * TIMEOUT_S

    in_virtual_time(run())


def test_a_few_calls_that_hang_go_to_another_server_once() -> None:
    async def run() -> None:
        a, b, _ = three()
        fleet, _ = fleet_of(a, b)
        async with fleet:
            a.state = "hangs"  # too few calls to tell it from a prompt that takes too long
            assert (await fleet.sample(request("q0"))).text == "q0 0"
            a.state = b.state = "hangs"
            with pytest.raises(EndpointError, match="did not answer") as failed:
                await fleet.sample(request("q1"))
            assert not failed.value.fatal
            assert failed.value.attempts == 8

    in_virtual_time(run())


def test_a_request_that_is_refused_fails_alone_at_its_first_server() -> None:
    async def run() -> None:
        a, b, _ = three()

        def refuse(_: SampleRequest) -> None:
            raise EndpointError("answered 400")

        a.meet = b.meet = refuse
        fleet, _ = fleet_of(a, b)
        async with fleet:
            with pytest.raises(EndpointError, match="answered 400"):
                await fleet.sample(request("q0"))
        assert calls_made(a, b) == {("q0", 0): 1}

    in_virtual_time(run())


def test_without_any_server_calls_wait_and_then_go_on() -> None:
    async def run() -> None:
        servers = three()
        fleet, _ = fleet_of(*servers)
        async with fleet:
            answering = asyncio.create_task(answer_all(fleet, 6))
            await asyncio.sleep(3.0)
            for server in servers:
                server.stop()
            await asyncio.sleep(PATIENCE_S / 2)
            servers[1].start()
            assert await answering == expected(6)

    in_virtual_time(run())


def test_the_run_ends_if_no_server_comes_back() -> None:
    async def run() -> None:
        servers = three()
        fleet, _ = fleet_of(*servers)
        async with fleet:
            first = asyncio.create_task(fleet.sample(request("q0")))
            await asyncio.sleep(1.0)
            for server in servers:
                server.stop()
            with pytest.raises(EndpointError, match="none of 3 servers works") as ended:
                await first
            assert ended.value.fatal
            assert PATIENCE_S <= now() < PATIENCE_S + 60
            assert all(server.name in str(ended.value) for server in servers)

    in_virtual_time(run())


def test_a_stopped_run_does_not_wait_for_servers() -> None:
    async def run() -> None:
        a, b, _ = three()
        is_stopped = False

        def check() -> None:
            if is_stopped:
                raise BudgetExceeded("interrupted")

        fleet, _ = fleet_of(a, b, before_call=check)
        async with fleet:
            call = asyncio.create_task(fleet.sample(request("q0")))
            await asyncio.sleep(1.0)
            a.stop(), b.stop()
            await asyncio.sleep(10.0)
            is_stopped = True
            with pytest.raises(BudgetExceeded, match="interrupted"):
                await call
            assert now() < 15

    in_virtual_time(run())


def test_a_prompt_that_ends_servers_fails_alone() -> None:
    async def run() -> None:
        servers = three()

        def crash(received: SampleRequest) -> None:
            if received.identity.question_id == "poison":
                raise ServerLost("the vLLM server ended", ended=True)

        for server in servers:
            server.meet = crash
        fleet, _ = fleet_of(*servers)
        async with fleet:
            poison = asyncio.create_task(fleet.sample(request("poison")))
            others = await answer_all(fleet, 6)
            with pytest.raises(EndpointError, match="3 servers ended during this call") as failed:
                await poison
            assert not failed.value.fatal
            assert others == expected(6)
        assert calls_made(*servers)["poison", 0] == MOST_LOST_SERVERS

    in_virtual_time(run())


def test_a_fault_that_no_wait_cures_ends_the_run_once_all_servers_have_it() -> None:
    async def run() -> None:
        a, b, _ = three()

        def reject(_: SampleRequest) -> None:
            raise EndpointError("answered 401", fatal=True)

        a.meet = reject
        fleet, _ = fleet_of(a, b)
        async with fleet:
            assert await answer(fleet, "q0") == expected(1)[0]
            b.meet = reject
            with pytest.raises(EndpointError, match="answered 401") as ended:
                await fleet.sample(request("q0", 10))
            assert ended.value.fatal
            assert now() < 60

    in_virtual_time(run())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": False}, "another model"),
        ({"context": 2048}, "another context"),
        ({"template": "other"}, "another template"),
        ({"capabilities": Capabilities(token_ids=True)}, "another capabilities"),
    ],
)
def test_servers_that_differ_are_refused(change: dict[str, Any], named: str) -> None:
    async def run() -> None:
        a, b, c = three()
        c.served = replace(c.served, **change)
        fleet, _ = fleet_of(a, b, c)
        with pytest.raises(ConfigError, match=rf"http://c: {named}"):
            await fleet.__aenter__()
        assert not any(server.is_open for server in (a, b, c))

    in_virtual_time(run())


def test_what_a_server_does_not_say_is_no_difference() -> None:
    async def run() -> None:
        a, b, _ = three()
        b.served = ServedModel(CAPABILITIES)
        async with fleet_of(a, b)[0] as fleet:
            fleet.require_all()

    in_virtual_time(run())


def test_a_server_that_is_down_at_the_start_joins_later() -> None:
    async def run() -> None:
        a, b, _ = three()
        a.state = "refuses"
        fleet, messages = fleet_of(a, b)
        async with fleet:
            with pytest.raises(EndpointError, match="nothing answers at http://a"):
                fleet.require_all()
            assert await answer_all(fleet, 2) == expected(2)
            assert not a.received
            a.start()
            await asyncio.sleep(60.0)
            await answer_all(fleet, 2)  # these questions stay where they are
            assert not a.received
            await answer(fleet, "new")
            assert a.received
        assert "its questions go to the other servers" in messages[0]

    in_virtual_time(run())


def test_without_a_server_at_the_start_the_run_ends_at_once() -> None:
    async def run() -> None:
        servers = three()
        for server in servers:
            server.state = "refuses"
        with pytest.raises(EndpointError, match="none of 3 servers works"):
            await fleet_of(*servers)[0].__aenter__()
        assert now() == 0

    in_virtual_time(run())


def test_a_cancelled_caller_cancels_only_its_call() -> None:
    async def run() -> None:
        a, b, _ = three()
        fleet, _ = fleet_of(a, b)
        async with fleet:
            first = asyncio.create_task(fleet.sample(request("q0")))
            second = asyncio.create_task(fleet.sample(request("q0", 1)))
            await asyncio.sleep(1.0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await second).text == "q0 1"
            assert not a.under_way

    in_virtual_time(run())


def test_calls_in_progress_at_a_lost_server_are_repeated_at_once() -> None:
    async def run() -> None:
        a, b, _ = three()
        a.latency_s = 1000.0
        fleet, _ = fleet_of(a, b)
        async with fleet:
            slow = asyncio.create_task(fleet.sample(request("q0")))
            await asyncio.sleep(1.0)
            a.state = "refuses"  # the connection of the first call stays open
            assert (await fleet.sample(request("q0", 1))).text == "q0 1"
            assert (await slow).text == "q0 0"
            assert now() < 10.0
        assert fleet.repeated == 2

    in_virtual_time(run())
