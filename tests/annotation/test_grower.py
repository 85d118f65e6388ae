"""Growing the tree or the chains of one question: calls, identities, token limit and labels."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from agent_protocols import agent_settings
from sample_records import a_question
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import State
from branchwise.annotation.evaluators import JudgeEvaluator, RolloutEvaluator
from branchwise.annotation.grower import GrownTree, ReportProgress, grow
from branchwise.annotation.judge import Judge
from branchwise.annotation.records import Provenance, tree_rows
from branchwise.engines.sampling import Capabilities, SampleRequest, Sampling
from branchwise.engines.settings import JudgeSettings
from branchwise.mcts import SEARCH_SETTINGS, TreeSettings
from branchwise.rewards.scheme import NodeEvaluation
from branchwise.rewards.spre import Spre
from branchwise.runs.recipe import Recipe
from branchwise.types import Question

REPLIES = ("<query>France</query>", "<answer>Paris</answer>", "<query>Lyon</query>", "well, well")


def hash_policy() -> ScriptedEngine:
    """Engine whose ten-token reply depends only on the path and the draw of the call."""

    def reply(request: SampleRequest) -> str:
        name = f"{request.identity.path}:{request.identity.draw}"
        return REPLIES[hashlib.blake2b(name.encode()).digest()[0] % len(REPLIES)]

    return ScriptedEngine(reply, capabilities=Capabilities())


@dataclass
class ConstantJudge:
    """Evaluator that scores every state 0.5."""

    terminals: bool = False

    async def evaluate(self, question: Question, state: State, path: str) -> NodeEvaluation:
        return NodeEvaluation(0.5, judge_score=0.5)


async def grow_tree(
    report_progress: ReportProgress = lambda share: None, **settings: Any
) -> tuple[GrownTree, ScriptedEngine]:
    engine, scheme = hash_policy(), Recipe(name="x").scheme
    environment = Environment(
        ReasonRAG(agent_settings(max_steps=5)), engine, ScriptedRetriever(), top_k=1
    )
    rollouts = RolloutEvaluator(environment, Sampling(), 2, scheme)
    kind = SEARCH_SETTINGS[settings.get("kind", "tree")]
    fitting = {name: settings[name] for name in settings if name in kind.model_fields}
    search = kind.model_validate(fitting)
    sampling = Sampling()
    return (
        await grow(a_question(), environment, rollouts, search, scheme, sampling, report_progress),
        engine,
    )


async def test_chains_call_only_the_policy_and_every_call_has_its_own_identity() -> None:
    tree, engine = await grow_tree(kind="chains", iterations=20)
    assert tree.tree.root.visits == 20
    names = [request.identity for request in engine.asked]
    assert {name.path.partition("/")[0] for name in names} == {"tree"}
    assert len(set(names)) == len(names) == len(tree.moves)
    assert tree.tree.duplicates, "the prefix tree should merge some chains"
    assert set(tree.evaluations) == {node.id for node in tree.tree.nodes if node.terminal}
    again, _ = await grow_tree(kind="chains", iterations=20)
    assert [n.path for n in again.tree.nodes] == [n.path for n in tree.tree.nodes]


@pytest.mark.parametrize("kind", ["tree", "chains"])
async def test_no_iteration_starts_after_max_output_tokens_is_reached(kind: str) -> None:
    free, engine = await grow_tree(kind=kind, iterations=12, max_children=3)
    assert not free.stopped
    assert free.generated == 10 * len(engine.asked), (
        "the count covers children, repeated draws and rollouts"
    )
    limit = free.generated // 2
    tree, engine = await grow_tree(
        kind=kind, iterations=12, max_children=3, max_output_tokens=limit
    )
    made = tree.tree.root.visits
    assert tree.stopped
    assert 0 < made < 12
    assert tree.generated == 10 * len(engine.asked) >= limit
    before, _ = await grow_tree(kind=kind, iterations=made - 1, max_children=3)
    assert before.generated < limit, "the last iteration should start below the limit"


@pytest.mark.parametrize("kind", ["tree", "chains"])
async def test_progress_is_reported_before_every_iteration(kind: str) -> None:
    shares: list[float] = []
    await grow_tree(kind=kind, iterations=8, max_children=3, report_progress=shares.append)
    assert shares[:8] == [n / 8 for n in range(8)]
    assert max(shares) <= 1


PROVENANCE = Provenance(0, 0, "policy", "digest", None, "prompts", "labels", "config")


async def tree_labels(replies: Sequence[str], **settings: Any) -> list[tuple[str, int, float]]:
    """Returns content, visits and `tree` label of every labelled node; draw n gets reply n."""
    scheme = Recipe.model_validate({"name": "x", "rewards": {"estimator": "tree"}}).scheme
    engine = ScriptedEngine(
        lambda request: replies[request.identity.draw], capabilities=Capabilities()
    )
    environment = Environment(ReasonRAG(), engine, ScriptedRetriever(), top_k=1)
    search = TreeSettings(selection="uct", c=1.414, **settings)
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


async def test_iterations_on_an_exhausted_tree_change_its_labels() -> None:
    """The right answer is worth 0.9; with more iterations, its share of the visits grows."""
    stopped = await tree_labels(ANSWERS, iterations=64)
    assert stopped == [("", 2, pytest.approx(0.45)), ("Paris", 1, 0.9), ("Lyon", 1, 0.0)]
    root, right, wrong = await tree_labels(ANSWERS, iterations=64, stop_when_exhausted=False)
    assert (root[1], right[1] + wrong[1]) == (64, 64)
    assert right[1] > 3 * wrong[1]
    assert root[2] == pytest.approx(0.9 * right[1] / 64)


async def test_equal_siblings_are_merged_only_if_fold_duplicates_is_set() -> None:
    replies = ("<answer>Paris</answer>", "<answer>paris!</answer>", "<answer>Paris</answer>")
    folded = await tree_labels(replies, iterations=2)
    assert [row[:2] for row in folded] == [("", 2), ("Paris", 2)]
    apart = await tree_labels(replies, iterations=2, fold_duplicates=False)
    assert [row[:2] for row in apart] == [("", 2), ("Paris", 1), ("paris!", 1)]


@pytest.mark.parametrize("terminals", [False, True])
async def test_a_final_answer_is_valued_by_its_outcome_or_by_the_judge(terminals: bool) -> None:
    """An invalid action is worth 0 in both cases, without a judge call."""
    recipe = Recipe.model_validate({"name": "x", "rewards": {"estimator": "judge"}})
    replies = ("<answer>Paris</answer>", "well, well")
    engine = ScriptedEngine(lambda asked: replies[asked.identity.draw], capabilities=Capabilities())
    verdicts = ScriptedEngine(lambda _: "So the score is 0.7.", capabilities=Capabilities())
    environment = Environment(ReasonRAG(), engine, ScriptedRetriever(), top_k=1)
    evaluator = JudgeEvaluator(Judge(verdicts, JudgeSettings()), recipe.scheme, terminals)
    search, question = TreeSettings(iterations=2), a_question()
    tree = await grow(question, environment, evaluator, search, recipe.scheme, Sampling())
    worth = 0.7 * 0.9 if terminals else 0.9
    assert [node.value for node in tree.tree.nodes] == [None, pytest.approx(worth), 0.0]
    assert len(verdicts.asked) == terminals
    rows = tree_rows(question, tree, PROVENANCE)
    labels = recipe.scheme.labels(question, rows, [node.state for node in tree.tree.nodes])
    assert labels[1].reward == pytest.approx(worth)


async def test_a_rescored_answer_keeps_the_verdict_of_its_outcome() -> None:
    class Verified(Spre):
        async def finished(self, question: Question, state: State, path: str) -> NodeEvaluation:
            return NodeEvaluation(1.0, verdict=True)

    scheme = Verified(Recipe(name="x"))
    engine = ScriptedEngine(lambda _: "<answer>Paris</answer>", capabilities=Capabilities())
    environment = Environment(ReasonRAG(), engine, ScriptedRetriever(), top_k=1)
    search = TreeSettings(iterations=1)
    judge = ConstantJudge(terminals=True)
    tree = await grow(a_question(), environment, judge, search, scheme, Sampling())
    assert tree.evaluations == {1: NodeEvaluation(0.5, judge_score=0.5, verdict=True)}
