"""The environment: steps, budget, retrieval, and no gold in any prompt."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from agent.environment import Environment
from agent.reasonrag import ReasonRAG
from agent.settings import AgentSettings
from agent.state import State
from engines.sampling import (
    Capabilities,
    Completion,
    FinishReason,
    SampleRequest,
    Sampling,
    Usage,
)
from storage.records import RetrievedPassage


class ScriptedEngine:
    """Replies by a function of the request; keeps what it was asked."""

    model = "scripted"
    digest = "0"
    capabilities = Capabilities(structured_output=True)

    def __init__(
        self, reply: Callable[[SampleRequest], str], finish: FinishReason = "stop"
    ) -> None:
        self.reply = reply
        self.finish = finish
        self.asked: list[SampleRequest] = []

    async def sample(self, request: SampleRequest, n: int = 1) -> list[Completion]:
        self.asked += request.draws(n)
        usage = Usage(10, 0, 5)
        return [Completion(self.reply(r), self.finish, usage, self.model) for r in request.draws(n)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class OnePassage:
    """A retriever that keeps its queries."""

    digest = "0"

    def __init__(self) -> None:
        self.queries: list[str] = []

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        self.queries.append(query)
        return [RetrievedPassage(id="p", title="T", text="Paris is in France.", score=1.0)]


def world(engine: ScriptedEngine, max_steps: int = 10) -> Environment:
    settings = AgentSettings(max_steps=max_steps)
    return Environment(ReasonRAG(), engine, OnePassage(), settings, top_k=3)


def by_stage(request: SampleRequest) -> str:
    """Search, take the evidence, answer."""
    text = request.messages[-1].content
    if "<passage>" in text:
        return "<evidence>Paris is in France</evidence>"
    return "<answer>France</answer>" if "Evidence:" in text else "<query>Paris</query>"


async def test_a_trajectory_goes_through_the_stages() -> None:
    engine = ScriptedEngine(by_stage)
    end = await world(engine).trajectory(State("Where?"), Sampling(), question_id="q", path="r")
    assert [s.action.kind for s in end.state.steps] == ["query", "evidence", "answer"]
    assert end.state.answer == "France"
    assert end.stop_reason == "answer"
    assert end.usage == Usage(30, 0, 15)
    keys = {(r.identity.path, r.identity.draw) for r in engine.asked}
    assert len(keys) == 3, "every call has a name of its own"


async def test_the_last_call_of_the_budget_is_forced() -> None:
    def stubborn(request: SampleRequest) -> str:
        assert request.structure is not None
        if "query" not in request.structure.value and "evidence" not in request.structure.value:
            return "<answer>guess</answer>"
        grounding = "<passage>" in request.messages[-1].content
        return "<evidence>None</evidence>" if grounding else "<query>again</query>"

    engine = ScriptedEngine(stubborn)
    end = await world(engine, max_steps=4).trajectory(
        State("Where?"), Sampling(), question_id="q", path="r"
    )
    assert end.state.depth == 4
    assert end.stop_reason == "forced"
    assert end.state.answer == "guess"
    assert [s.forced for s in end.state.steps] == [False, False, False, True]


async def test_a_completion_cut_at_the_token_limit_is_invalid() -> None:
    engine = ScriptedEngine(lambda _: "<answer>France</answer>", finish="length")
    move = await world(engine).act(State("Where?"), Sampling(), question_id="q", path="r")
    assert move.step.action.kind == "invalid"
    assert move.state.terminal
    assert move.state.answer is None
