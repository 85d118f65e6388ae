"""Trees and chains of one question: who is asked, under which name, and for how many tokens."""

import hashlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pytest
from sample_records import a_question

from agent.environment import Environment
from agent.reasonrag import ReasonRAG
from agent.settings import AgentSettings
from agent.state import State
from annotation.evaluators import NodeFacts, RolloutEvaluator
from annotation.grower import GrownTree, grow
from annotation.worth import SpreWorth
from engines.sampling import CallIdentity, Capabilities, Completion, SampleRequest, Sampling, Usage
from mcts import SearchSettings
from rewards.settings import SpreSettings
from storage.records import Question, RetrievedPassage

REPLIES = ("<query>France</query>", "<answer>Paris</answer>", "<query>Lyon</query>", "well, well")


@dataclass
class Dice:
    """Replies by the name of the call alone; every reply has ten tokens."""

    model = "dice"
    digest = "digest"
    capabilities = Capabilities()
    asked: list[CallIdentity] = field(default_factory=list)

    async def sample(self, request: SampleRequest, n: int = 1) -> list[Completion]:
        name = request.identity
        self.asked.append(name)
        thrown = hashlib.blake2b(f"{name.path}:{name.draw}".encode()).digest()[0]
        return [Completion(REPLIES[thrown % len(REPLIES)], "stop", Usage(100, 0, 10), self.model)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class Shelf:
    digest = "shelf"

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        return []


@dataclass
class CostlyJudge:
    """An evaluator whose tokens are not the policy's."""

    async def evaluate(self, question: Question, state: State, path: str) -> NodeFacts:
        return NodeFacts(0.5, judge_score=0.5, usage=Usage(1000, 0, 1000))


async def grown(**settings: object) -> tuple[GrownTree, Dice]:
    engine, spre = Dice(), SpreSettings(rollouts=2)
    environment = Environment(ReasonRAG(), engine, Shelf(), AgentSettings(max_steps=5), top_k=1)
    rollouts = RolloutEvaluator(environment, Sampling(), spre)
    search = SearchSettings(**settings)
    evaluator = CostlyJudge() if search.evaluator == "judge" else rollouts
    worth = SpreWorth(spre, "monte_carlo")
    return await grow(a_question(), environment, evaluator, search, worth, Sampling()), engine


async def test_chains_ask_the_policy_only_and_never_twice_under_one_name() -> None:
    tree, engine = await grown(kind="chains", iterations=20)
    assert tree.tree.root.visits == 20
    assert {name.path.partition("/")[0] for name in engine.asked} == {"tree"}
    assert len(set(engine.asked)) == len(engine.asked) == len(tree.moves)
    assert tree.tree.duplicates, "or nothing here is about prefix trees"
    assert set(tree.facts) == {node.id for node in tree.tree.nodes if node.terminal}
    again, _ = await grown(kind="chains", iterations=20)
    assert [n.path for n in again.tree.nodes] == [n.path for n in tree.tree.nodes]


@pytest.mark.parametrize("kind", ["tree", "chains"])
async def test_no_iteration_begins_once_the_tokens_are_generated(kind: str) -> None:
    free, engine = await grown(kind=kind, iterations=12, max_children=3)
    assert not free.stopped
    assert free.generated == 10 * len(engine.asked), "children, repeated draws and rollouts"
    limit = free.generated // 2
    tree, engine = await grown(kind=kind, iterations=12, max_children=3, max_output_tokens=limit)
    made = tree.tree.root.visits
    assert tree.stopped
    assert 0 < made < 12
    assert tree.generated == 10 * len(engine.asked) >= limit
    before, _ = await grown(kind=kind, iterations=made - 1, max_children=3)
    assert before.generated < limit, "the last iteration began in time"


async def test_a_judge_s_tokens_are_not_the_policy_s() -> None:
    tree, engine = await grown(iterations=8, evaluator="judge", max_output_tokens=10_000)
    assert tree.usage.output_tokens > 1000
    assert tree.generated == 10 * len(engine.asked)
    assert not tree.stopped
