"""Reward model scores in the search and in pairs, next to the labels of the tree."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sample_records import a_node, a_question

from branchwise.agent.state import Action, State, Step
from branchwise.annotation.evaluators import RewardModelEvaluator
from branchwise.annotation.labelling import node_scores
from branchwise.annotation.pairs import SCORE, sibling_pairs
from branchwise.annotation.settings import PairSettings
from branchwise.modeling.embedding import Prefix
from branchwise.rewards.outcome import Label
from branchwise.types import Message, TreeNode

QUESTION = a_question()
BY_SCORE = PairSettings(score="reward_model", min_gap=0.2)


def prompt(state: State) -> Sequence[Message]:
    return [Message("user", f"{state.question} after {state.depth}")]


class Model:
    """Reward model with a fixed score per text; `shown` records the steps that it scored."""

    def __init__(self, **scores: float | None) -> None:
        self.scores, self.shown = scores, list[tuple[str, str, int]]()

    def score(self, steps: Sequence[Prefix], t: Sequence[int]) -> list[float | None]:
        for step, time in zip(steps, t, strict=True):
            self.shown.append((step.messages[0].content, step.text, time))
        return [self.scores[step.text] for step in steps]


def after(*texts: str) -> State:
    state = State("Where?")
    for text in texts:
        last = text == "end"
        step = Step("reasoning", text, Action("answer" if last else "search", text))
        state = state.after(step, "terminal" if last else "reasoning")
    return state


async def test_a_node_is_valued_by_the_score_of_its_last_step() -> None:
    model: Any = Model(a=0.5, end=-2.0, long=None)
    evaluator = RewardModelEvaluator(model, prompt)
    inner = await evaluator.evaluate(QUESTION, after("a"), "0")
    end = await evaluator.evaluate(QUESTION, after("a", "end"), "0/0")
    assert (inner.value, end.value) == (0.5, -2.0)
    assert model.shown == [("Where? after 0", "a", 0), ("Where? after 1", "end", 1)]
    long = await evaluator.evaluate(QUESTION, after("long"), "0")
    assert (long.value, long.unscored) == (None, "longer than the reward model reads")


async def test_scoring_runs_one_step_at_a_time_without_blocking_the_event_loop() -> None:
    let_go, at_once = threading.Event(), threading.Semaphore(1)

    class Slow(Model):
        def score(self, steps: Sequence[Prefix], t: Sequence[int]) -> list[float | None]:
            assert at_once.acquire(blocking=False), "two steps are scored at the same time"
            assert let_go.wait(60), "the event loop is blocked"
            at_once.release()
            return super().score(steps, t)

    slow: Any = Slow(a=1.0, b=2.0)
    evaluator = RewardModelEvaluator(slow, prompt)
    tasks = [
        asyncio.create_task(evaluator.evaluate(QUESTION, after(text), "0")) for text in ("a", "b")
    ]
    await asyncio.sleep(0)
    let_go.set()
    assert [facts.value for facts in await asyncio.gather(*tasks)] == [1.0, 2.0]


def siblings(n: int) -> list[TreeNode]:
    root = a_node(node_id=0, parent_id=-1, depth=0, text="", content="", action="")
    return [root, *(a_node(node_id=i, content=str(i), text=f"s{i}") for i in range(1, n + 1))]


def labels(*rewards: float | None) -> list[Label]:
    return [Label(None, 0), *(Label(r, 1 if r is not None else 0) for r in rewards)]


def test_scores_order_and_filter_pairs_and_rewards_are_kept() -> None:
    nodes = siblings(4)
    pairs, dropped = sibling_pairs(
        nodes, labels(0.9, 0.1, 0.5, None), BY_SCORE, [None, -1.0, 1.0, 0.9, 5.0]
    )
    assert [(p.chosen.node_id, p.rejected.node_id) for p in pairs] == [(2, 1), (3, 1)]
    first = pairs[0]
    assert (first.chosen_label.reward, first.rejected_label.reward) == (0.1, 0.9)
    assert (first.gap, first.margin) == (pytest.approx(-0.8), 2.0)
    sides = [
        {c.name: c.value for c in label.components}[SCORE]
        for label in (first.chosen_label, first.rejected_label)
    ]
    assert sides == [1.0, -1.0]
    assert dropped == {"small_gap": 1, "unlabelled": 3}
    swapped = first.swapped
    assert (swapped.gap, swapped.margin) == (-first.gap, -first.margin)


def test_the_extreme_pair_is_chosen_by_the_scores() -> None:
    extremes = BY_SCORE.model_copy(update={"per_state": "extremes"})
    pairs, dropped = sibling_pairs(
        siblings(3), labels(0.0, 0.5, 1.0), extremes, [None, 3.0, 0.0, 1.0]
    )
    assert [(p.chosen.node_id, p.rejected.node_id) for p in pairs] == [(1, 2)]
    assert dropped == {"not_extreme": 2}
    unscored = sibling_pairs(siblings(2), labels(0.0, 1.0), BY_SCORE, [None, None, 1.0])
    assert unscored == ([], {"unscored": 1})


def test_every_step_of_a_tree_is_scored_at_its_own_time_step() -> None:
    model: Any = Model(a=0.1, b=0.2, end=0.3)
    nodes = siblings(3)
    nodes[3] = a_node(node_id=3, parent_id=1, depth=2)
    states = [State("Where?"), after("a"), after("b"), after("a", "end")]
    assert node_scores(model, nodes, states, prompt) == [None, 0.1, 0.2, 0.3]
    assert [(text, t) for _, text, t in model.shown] == [("a", 0), ("b", 0), ("end", 1)]
