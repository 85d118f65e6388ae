"""Protocols that continue one assistant turn: token ids, inserted text, corrections, budgets."""

from typing import Any

import pytest
from sample_records import a_question
from scripted_engine import END_OF_TURN, ScriptedEngine, ScriptedRetriever, SpellingEngine, spelt

from branchwise.agent.environment import Environment, Trajectory
from branchwise.agent.protocol import AgentProtocol
from branchwise.agent.replay import replay_tree
from branchwise.agent.segments import Segment
from branchwise.agent.settings import AgentSettings
from branchwise.agent.state import Action, State, Step
from branchwise.annotation.grower import grow
from branchwise.annotation.records import Provenance, tree_rows
from branchwise.base.errors import EndpointError
from branchwise.engines.sampling import Sampling
from branchwise.mcts import TreeSettings
from branchwise.rewards.outcome import Label, Outcome
from branchwise.rewards.scheme import NodeEvaluation, RewardScheme
from branchwise.types import Message, Passage, Question, RetrievedPassage

OOPS = "\nTry again.\n"
FOUND = Passage(id="p", title="T", text="text of p")


class Pausing(AgentProtocol):
    """Searches with [query], answers with (answer), and corrects one mistake."""

    name = "reasonrag"  # for its prompts
    forces_answer = False
    continues = True
    stops = ("]", ")")

    @property
    def prefill(self) -> str:
        return ">"

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        return (Message("user", state.question),)

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        for kind, opening, closing in (("search", "[", "]"), ("answer", "(", ")")):
            if text.endswith(closing) and opening in text:
                return Action(kind, text.rpartition(opening)[2][:-1])
        return Action.invalid("neither")

    def next_stage(self, state: State, action: Action, *, last: bool = False) -> str:
        mistakes = sum(step.action.kind == "invalid" for step in state.steps)
        if action.kind == "invalid" and not last and not mistakes:
            return state.stage
        return super().next_stage(state, action, last=last)

    def inserted(self, state: State, step: Step) -> str:
        if step.action.kind == "invalid":
            return OOPS
        return "{" + ",".join(p.id for p in step.passages) + "}"

    def render(self, action: Action) -> str:
        return f"[{action.content}]" if action.kind == "search" else f"({action.content})"


def world(engine: SpellingEngine | ScriptedEngine, **settings: Any) -> Environment:
    shelf = ScriptedRetriever(lambda _: [RetrievedPassage(**FOUND.model_dump(), score=1.0)])
    return Environment(
        Pausing(AgentSettings(protocol="pausing", **settings)), engine, shelf, top_k=1
    )


class Worthless(RewardScheme):
    """Reward scheme that always gives zero."""

    def __init__(self) -> None:
        """Skips the base class's constructor, which needs a recipe."""

    async def finished(self, question: Question, state: State, path: str) -> NodeEvaluation:
        return NodeEvaluation(0.0)

    def outcome(self, *_: object) -> Outcome:
        return Outcome(0.0)

    def labels(self, *_: object) -> list[Label]:
        return []

    def describe(self) -> str:
        return "nothing"


async def followed(*texts: str, **settings: Any) -> tuple[Trajectory, SpellingEngine]:
    engine = SpellingEngine(list(texts))
    end = await world(engine, **settings).trajectory(
        State("Q?"), Sampling(), question_id="q", path="r"
    )
    return end, engine


async def test_a_turn_continues_with_the_sampled_token_ids() -> None:
    end, engine = await followed("a [x] dropped", "b (y)")
    assert [step.text for step in end.state.steps] == ["a [x]", "b (y)"], "stop string included"
    assert [step.inserted for step in end.state.steps] == ["{p}", ""]
    assert engine.asked[1].prefix == (">", spelt("a [x]"), "{p}")
    first, second = [move.completion for move in end.moves]
    assert second.prompt_ids is not None and first.prompt_ids is not None
    assert first.token_ids is not None
    assert second.prompt_ids == first.prompt_ids + first.token_ids + spelt("{p}")
    assert second.logprobs == (-0.5,) * len("b (y)")
    assert (end.state.answer, end.stop_reason) == ("y", "answer")


async def test_an_invalid_action_is_corrected_once_within_the_turn() -> None:
    end, engine = await followed("neither", "(y)")
    assert engine.asked[1].prefix == (">", spelt("neither"), OOPS), "without the end-of-turn token"
    assert end.moves[0].completion.token_ids == (*spelt("neither"), END_OF_TURN)
    assert end.stop_reason == "answer"
    twice, _ = await followed("neither", "neither")
    assert twice.stop_reason == "invalid"


async def test_the_last_call_is_not_forced_and_its_search_is_not_run() -> None:
    engine = SpellingEngine(["[x]", "[y]"])
    environment = world(engine, max_steps=2)
    end = await environment.trajectory(State("Q?"), Sampling(), question_id="q", path="r")
    assert environment.retriever.queries == [("x", 1)]  # type: ignore[attr-defined]
    assert (end.stop_reason, end.state.forced, end.state.answer) == ("budget", False, None)


async def test_segments_name_the_author_and_the_prompt_holds_the_turn() -> None:
    end, _ = await followed("[x]", "cut…", "(y)")
    protocol = Pausing()
    assert protocol.segments(end.state) == (
        Segment("prefill", ">"),
        Segment("policy", "[x]"),
        Segment("environment", "{p}"),
        Segment("policy", "cut", cut=True),
        Segment("environment", OOPS),
        Segment("policy", "(y)"),
    )
    before = State("Q?", steps=end.state.steps[:1])
    turn = (Message("assistant", part) for part in (">", "[x]", "{p}"))
    assert protocol.prompt(before) == (Message("user", "Q?"), *turn)


async def test_a_stored_tree_replays_to_the_same_states() -> None:
    question = a_question(question="Q?")
    engine = SpellingEngine(["[x]", "neither", "(y)", "(z)", "[w]", "(v)", "(u)", "(t)"])
    search = TreeSettings(iterations=3, max_children=2, evaluator="playout")
    grown = await grow(question, world(engine), None, search, Worthless(), Sampling())
    rows = tree_rows(question, grown, Provenance(0, 0, "m", "d", None, "h", "l", "c"))
    again = replay_tree(question, rows, {"p": FOUND}, Pausing())
    assert len(rows) > 4
    for node, state in zip(grown.tree.nodes, again, strict=True):
        assert Pausing().prefix(state) == Pausing().prefix(node.state)
        assert Pausing().segments(state) == Pausing().segments(node.state)
        assert state.stage == node.state.stage


def test_an_engine_without_token_ids_is_refused_before_any_call() -> None:
    engine = ScriptedEngine(lambda _: "(y)")
    with pytest.raises(EndpointError, match="needs to continue a turn"):
        world(engine)
    assert not engine.asked
