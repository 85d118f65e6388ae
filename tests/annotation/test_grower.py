"""Trees and chains of one question: who is asked, under which name, and for how many tokens."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sample_records import a_question
from scripted_engine import ScriptedEngine, ScriptedRetriever

from agent.environment import Environment
from agent.reasonrag import ReasonRAG
from agent.settings import AgentSettings
from agent.state import State
from annotation.evaluators import JudgeEvaluator, RolloutEvaluator
from annotation.grower import GrownTree, ReportProgress, grow
from annotation.judge import Judge
from annotation.rows import Provenance, tree_rows
from engines.sampling import Capabilities, SampleRequest, Sampling
from engines.settings import JudgeSettings
from mcts import SearchSettings
from rewards.scheme import NodeEvaluation
from runs.recipe import Recipe
from storage.records import Question

REPLIES = ("<query>France</query>", "<answer>Paris</answer>", "<query>Lyon</query>", "well, well")


def dice() -> ScriptedEngine:
    """Replies by the name of the call alone; every reply has ten tokens."""

    def reply(request: SampleRequest) -> str:
        name = f"{request.identity.path}:{request.identity.draw}"
        return REPLIES[hashlib.blake2b(name.encode()).digest()[0] % len(REPLIES)]

    return ScriptedEngine(reply, capabilities=Capabilities())


@dataclass
class ConstantJudge:
    """Gives every state 0.5."""

    terminals: bool = False

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        return NodeEvaluation(0.5, judge_score=0.5)


async def grown(
    report_progress: ReportProgress = lambda share: None, **settings: Any
) -> tuple[GrownTree, ScriptedEngine]:
    engine, scheme = dice(), Recipe(name="x").scheme
    environment = Environment(
        ReasonRAG(AgentSettings(max_steps=5)), engine, ScriptedRetriever(), top_k=1
    )
    rollouts = RolloutEvaluator(environment, Sampling(), 2, scheme)
    search = SearchSettings(**settings)
    sampling = Sampling()
    return (
        await grow(a_question(), environment, rollouts, search, scheme, sampling, report_progress),
        engine,
    )


async def test_chains_ask_the_policy_only_and_never_twice_under_one_name() -> None:
    tree, engine = await grown(kind="chains", iterations=20)
    assert tree.tree.root.visits == 20
    names = [request.identity for request in engine.asked]
    assert {name.path.partition("/")[0] for name in names} == {"tree"}
    assert len(set(names)) == len(names) == len(tree.moves)
    assert tree.tree.duplicates, "or nothing here is about prefix trees"
    assert set(tree.evaluations) == {node.id for node in tree.tree.nodes if node.terminal}
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


@pytest.mark.parametrize("kind", ["tree", "chains"])
async def test_progress_grows_with_the_iterations(kind: str) -> None:
    shares: list[float] = []
    await grown(kind=kind, iterations=8, max_children=3, report_progress=shares.append)
    assert shares[:8] == [n / 8 for n in range(8)]
    assert max(shares) <= 1


PROVENANCE = Provenance(0, 0, "policy", "digest", None, "prompts", "labels", "config")


async def tree_labels(replies: Sequence[str], **settings: Any) -> list[tuple[str, int, float]]:
    """Content, visits and `tree` label of every node; draw n at any node gives reply n."""
    scheme = Recipe.model_validate({"name": "x", "rewards": {"estimator": "tree"}}).scheme
    engine = ScriptedEngine(
        lambda request: replies[request.identity.draw], capabilities=Capabilities()
    )
    environment = Environment(ReasonRAG(), engine, ScriptedRetriever(), top_k=1)
    search = SearchSettings(selection="uct", c=1.414, **settings)
    question = a_question()
    tree = await grow(question, environment, ConstantJudge(), search, scheme, Sampling())
    rows = tree_rows(question, tree, PROVENANCE)
    labels = scheme.labels(question, rows, [node.state for node in tree.tree.nodes])
    return [
        (row.content, row.visits, label.reward)
        for row, label in zip(rows, labels, strict=True)
        if label.reward is not None
    ]


ANSWERS = ("<answer>Paris</answer>", "<answer>Lyon</answer>")


async def test_passes_over_an_exhausted_tree_move_its_labels() -> None:
    """The right answer is worth 0.9 and gets the more passes, the longer they go on."""
    stopped = await tree_labels(ANSWERS, iterations=64)
    assert stopped == [("", 2, pytest.approx(0.45)), ("Paris", 1, 0.9), ("Lyon", 1, 0.0)]
    root, right, wrong = await tree_labels(ANSWERS, iterations=64, stop_when_exhausted=False)
    assert (root[1], right[1] + wrong[1]) == (64, 64)
    assert right[1] > 3 * wrong[1]
    assert root[2] == pytest.approx(0.9 * right[1] / 64)


async def test_equal_siblings_are_one_node_or_as_many_as_were_drawn() -> None:
    replies = ("<answer>Paris</answer>", "<answer>paris!</answer>", "<answer>Paris</answer>")
    folded = await tree_labels(replies, iterations=2)
    assert [row[:2] for row in folded] == [("", 2), ("Paris", 2)]
    apart = await tree_labels(replies, iterations=2, fold_duplicates=False)
    assert [row[:2] for row in apart] == [("", 2), ("Paris", 1), ("paris!", 1)]


@pytest.mark.parametrize("terminals", [False, True])
async def test_a_final_answer_is_worth_its_outcome_or_the_judge_s_score(terminals: bool) -> None:
    """An invalid action is worth 0 in both cases, without a call."""
    recipe = Recipe.model_validate({"name": "x", "rewards": {"estimator": "judge"}})
    replies = ("<answer>Paris</answer>", "well, well")
    engine = ScriptedEngine(lambda asked: replies[asked.identity.draw], capabilities=Capabilities())
    verdicts = ScriptedEngine(lambda _: "So the score is 0.7.", capabilities=Capabilities())
    environment = Environment(ReasonRAG(), engine, ScriptedRetriever(), top_k=1)
    evaluator = JudgeEvaluator(Judge(verdicts, JudgeSettings()), recipe.scheme, terminals)
    search, question = SearchSettings(iterations=2), a_question()
    tree = await grow(question, environment, evaluator, search, recipe.scheme, Sampling())
    worth = 0.7 * 0.9 if terminals else 0.9
    assert [node.value for node in tree.tree.nodes] == [None, pytest.approx(worth), 0.0]
    assert len(verdicts.asked) == terminals
    rows = tree_rows(question, tree, PROVENANCE)
    labels = recipe.scheme.labels(question, rows, [node.state for node in tree.tree.nodes])
    assert labels[1].reward == pytest.approx(worth)
