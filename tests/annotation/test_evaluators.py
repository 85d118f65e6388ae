"""Node evaluators: concurrent rollouts when one of them fails, and the judge's discount."""

import asyncio
from dataclasses import replace

import pytest
from sample_records import a_question
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import Action, State, Step
from branchwise.annotation.evaluators import JudgeEvaluator, RolloutEvaluator
from branchwise.annotation.judge import Judge
from branchwise.base.errors import BudgetExceeded, EndpointError
from branchwise.engines.sampling import Capabilities, Completion, SampleRequest, Sampling
from branchwise.engines.settings import JudgeSettings
from branchwise.rewards.scheme import NodeEvaluation
from branchwise.runs.recipe import Recipe

HALVING = Recipe.model_validate({"name": "x", "rewards": {"alpha": 0.5}}).scheme
"""Scheme in which every step halves the value of an answer."""


class Faulty(ScriptedEngine):
    """Engine that raises `fault` in draw 0 once draw 1 has started, then lets draw 1 finish."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(lambda _: "<answer>Paris</answer>")
        self.fault = fault
        self.under_way = asyncio.Event()
        self.answer = asyncio.Event()
        self.answered = 0
        self.cancelled = 0

    async def sample(self, request: SampleRequest) -> Completion:
        if request.identity.draw == 0:
            await self.under_way.wait()
            asyncio.get_running_loop().call_soon(self.answer.set)
            raise self.fault
        self.under_way.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.answered += 1
        return await super().sample(request)


async def evaluate_root(engine: ScriptedEngine) -> NodeEvaluation:
    environment = Environment(ReasonRAG(), engine, ScriptedRetriever(), top_k=1)
    evaluator = RolloutEvaluator(environment, Sampling(), 2, HALVING)
    question = a_question()
    return await evaluator.evaluate(question, State(question.question), "0")


@pytest.mark.parametrize(
    "fault",
    [EndpointError("it broke", fatal=True), BudgetExceeded("limits.max_tokens 10 reached")],
    ids=["failed", "limit"],
)
async def test_a_rollout_that_ends_cancels_the_others_and_its_error_is_raised(
    fault: Exception,
) -> None:
    engine = Faulty(fault)
    with pytest.raises(type(fault)) as caught:
        await evaluate_root(engine)
    assert caught.value is fault
    assert (engine.cancelled, engine.answered) == (1, 0)


async def test_a_node_has_the_mean_outcome_of_its_rollouts() -> None:
    """One rollout of one step is right, worth α; the other one is wrong, worth 0."""
    engine = ScriptedEngine(
        lambda request: f"<answer>{('Paris', 'Rome')[request.identity.draw]}</answer>"
    )
    node = await evaluate_root(engine)
    assert node.value == (0.5 + 0) / 2
    assert [(rollout.draw, rollout.f1) for rollout in node.rollouts] == [(0, 1.0), (1, 0.0)]


QUERY = Step("reasoning", "<query>France</query>", Action("query", "France"))


async def test_the_judge_score_is_discounted_by_the_depth_of_the_state() -> None:
    engine = ScriptedEngine(lambda _: "So the score is 0.75.", capabilities=Capabilities())
    evaluator = JudgeEvaluator(Judge(engine, JudgeSettings()), HALVING)
    state = State("Q?").after(QUERY, "grounding").after(QUERY, "grounding")
    judged = await evaluator.evaluate(a_question(), state, "0/0")
    assert (judged.value, judged.judge_score) == (0.75 * 0.5**2, 0.75)
    rewards = {"alpha": 0.5, "judge_decay": False}
    plain = Recipe.model_validate({"name": "x", "rewards": rewards}).scheme
    judged = await replace(evaluator, scheme=plain).evaluate(a_question(), state, "0/0")
    assert judged.value == 0.75
