"""The environment: stages, usage, the budget of steps, and truncated completions."""

from agent_protocols import agent_settings
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import State
from branchwise.engines.sampling import SampleRequest, Sampling, Usage
from branchwise.types import RetrievedPassage


def one_passage(_: str) -> list[RetrievedPassage]:
    return [RetrievedPassage(id="p", title="T", text="Paris is in France.", score=1.0)]


def world(engine: ScriptedEngine, max_steps: int = 10) -> Environment:
    protocol = ReasonRAG(agent_settings(max_steps=max_steps))
    return Environment(protocol, engine, ScriptedRetriever(one_passage), top_k=3)


def by_stage(request: SampleRequest) -> str:
    """Returns a query, then evidence, then an answer."""
    text = request.messages[-1].content
    if "<passage>" in text:
        return "<evidence>Paris is in France</evidence>"
    return "<answer>France</answer>" if "Evidence:" in text else "<query>Paris</query>"


async def test_a_trajectory_runs_query_evidence_and_answer() -> None:
    engine = ScriptedEngine(by_stage)
    end = await world(engine).trajectory(State("Where?"), Sampling(), question_id="q", path="r")
    assert [s.action.kind for s in end.state.steps] == ["query", "evidence", "answer"]
    assert end.state.answer == "France"
    assert end.stop_reason == "answer"
    assert end.usage == Usage(300, 0, 30)
    keys = {(r.identity.path, r.identity.draw) for r in engine.asked}
    assert len(keys) == 3, "every call has its own path and draw"


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
