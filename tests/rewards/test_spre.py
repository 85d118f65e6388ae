"""SPRE labels on one tree small enough to compute by hand.

root ─┬─ 1 query ──┬─ 3 evidence ── 5 answer "France" (right)
      │            └─ 4 evidence (rollout: "Spain", wrong, 4 steps)
      └─ 2 answer "Spain" (wrong, terminal at depth 1)
α = 0.9 and F1 is 1 or 0, so the right answer at depth 3 is worth 0.729.
"""

from typing import Any

import pytest
from sample_records import a_node, a_question, a_rollout

from branchwise.rewards.settings import Estimator, SpreSettings
from branchwise.rewards.spre import label_tree, trajectory_digest
from branchwise.runs.recipe import Recipe
from branchwise.types import Rollout, TreeNode

GOLD = ("France",)
QUESTION = a_question(answers=GOLD)
ALPHA = 0.9


def node(
    node_id: int, parent_id: int, depth: int, action: str, content: str, **more: Any
) -> TreeNode:
    return a_node(
        node_id=node_id, parent_id=parent_id, depth=depth, action=action, content=content,
        text=content, terminal=action in {"answer", "invalid"}, **{"visits": 1, **more},
    )  # fmt: skip


def rollout(answer: str | None, steps: int, trajectory: str, **more: Any) -> Rollout:
    return a_rollout(answer, steps=steps, trajectory=trajectory, **more)


def tree() -> list[TreeNode]:
    same = trajectory_digest([("query", "a"), ("evidence", "b"), ("answer", "France")])
    return [
        node(0, -1, 0, "", "", visits=6),
        node(
            1, 0, 1, "query", "a", visits=4, rollouts=(rollout("France", 3, same),), judge_score=0.8
        ),
        node(2, 0, 1, "answer", "Spain", visits=2),
        node(
            3, 1, 2, "evidence", "b", visits=2, rollouts=(rollout(None, 3, "x"),), judge_score=0.5
        ),
        node(4, 1, 2, "evidence", "c", rollouts=(rollout("Spain", 4, "y"),)),
        node(5, 3, 3, "answer", "France"),
    ]


def rewards(estimator: Estimator, **settings: Any) -> list[float | None]:
    labels = label_tree(tree(), GOLD, SpreSettings(**settings), estimator)
    return [None if x.reward is None else round(x.reward, 6) for x in labels]


def test_monte_carlo_averages_over_distinct_outcomes() -> None:
    # Below 1: "France" (once: leaf 5 and the rollout at 1 are equal) and "Spain" at 4.
    right = ALPHA**3
    assert rewards("monte_carlo") == pytest.approx([right / 3, right / 2, 0, right, 0, right])
    outcomes = [x.n_outcomes for x in label_tree(tree(), GOLD, SpreSettings(), "monte_carlo")]
    assert outcomes == [3, 2, 1, 1, 1, 1]


def test_tree_weights_children_by_visits() -> None:
    # 4 has no leaf below it and no label, so 1 is worth as much as 3; root: (4·0.729 + 2·0) / 6.
    right = ALPHA**3
    assert rewards("tree") == pytest.approx([4 * right / 6, right, 0, right, None, right])


def test_rollout_uses_only_rollouts_that_start_at_the_node() -> None:
    right = ALPHA**3
    assert rewards("rollout") == pytest.approx([None, right, 0, None, 0, right])


def test_judge_averages_over_visits_and_is_none_without_an_answer_below() -> None:
    # Visits that ended at a node: 1 at node 1 (0.8·0.9), 1 at 3 (0.5·0.81), 1 at 5 (0.729), and
    # 2 at leaf 2 (0). Node 4 is unscored, and the root's own visit has no value.
    one, three, five = 0.8 * ALPHA, 0.5 * ALPHA**2, ALPHA**3
    expected = [
        (one + three + five) / 5,
        (one + three + five) / 3,
        0,
        (three + five) / 2,
        None,
        five,
    ]
    assert rewards("judge") == pytest.approx(expected)


def test_forced_answers_can_stay_unlabelled() -> None:
    nodes = tree()
    nodes[5] = nodes[5].model_copy(update={"forced": True})
    nodes[1] = nodes[1].model_copy(update={"rollouts": ()})
    counted = label_tree(nodes, GOLD, SpreSettings(), "monte_carlo")
    left_out = label_tree(nodes, GOLD, SpreSettings(label_forced=False), "monte_carlo")
    assert (counted[5].reward, left_out[5].reward) == (pytest.approx(ALPHA**3), None)
    assert left_out[3].reward is None


def test_forced_rollouts_can_stay_unlabelled() -> None:
    nodes = tree()
    own = (
        rollout("France", 3, "f", forced=True),
        rollout("Spain", 3, "s"),
    )
    nodes[1] = nodes[1].model_copy(update={"rollouts": own})
    rewards = [
        label_tree(nodes, GOLD, SpreSettings(label_forced=counted), "rollout")[1].reward
        for counted in (True, False)
    ]
    assert rewards == [pytest.approx(ALPHA**3 / 2), 0.0]


def test_invalid_actions_lower_the_judge_label_of_the_state_above() -> None:
    nodes = [*tree(), node(6, 1, 2, "invalid", "")]
    nodes[1] = nodes[1].model_copy(update={"visits": 5})
    label = label_tree(nodes, GOLD, SpreSettings(), "judge")[1]
    # As in the test of the judge, and one more visit with the value 0.
    assert label.reward == pytest.approx((0.8 * ALPHA + 0.5 * ALPHA**2 + ALPHA**3) / 4)


@pytest.mark.parametrize(
    ("evaluator", "estimator"),
    [("judge", "tree"), ("rollout", "monte_carlo"), ("playout", "monte_carlo")],
)
def test_the_default_estimator_depends_on_the_evaluator(
    evaluator: str, estimator: Estimator
) -> None:
    settings = {"name": "x", "mcts": {"evaluator": evaluator}}
    labels = Recipe.model_validate(settings).scheme.labels(QUESTION, tree(), [])
    assert labels == label_tree(tree(), GOLD, SpreSettings(), estimator)
    named = Recipe.model_validate({**settings, "rewards": {"estimator": "rollout"}}).scheme
    assert named.labels(QUESTION, tree(), []) == label_tree(tree(), GOLD, SpreSettings(), "rollout")


def test_an_invalid_action_has_no_label_and_is_not_counted_as_an_outcome() -> None:
    nodes = [*tree(), node(6, 1, 2, "invalid", "")]
    label = label_tree(nodes, GOLD, SpreSettings(), "monte_carlo")
    assert (label[6].reward, label[6].n_outcomes) == (None, 0)
    assert label[1].n_outcomes == 2


def evidence(nodes: list[TreeNode], estimator: Estimator) -> list[tuple[Any, ...] | None]:
    """Returns outcomes, mean F1 and mean steps per node, or None for a node without outcomes."""
    labels = label_tree(nodes, GOLD, SpreSettings(), estimator)
    return [
        (x.n_outcomes, *(pytest.approx(c.value) for c in x.components)) if x.n_outcomes else None
        for x in labels
    ]


def test_components_average_over_the_outcomes_of_the_estimator() -> None:
    right, spain_4, spain_1 = (1, 1, 3), (1, 0, 4), (1, 0, 1)
    # All distinct outcomes: "France" in 3 steps, "Spain" in 4 (a rollout) and "Spain" in 1.
    assert evidence(tree(), "monte_carlo") == [
        (3, 1 / 3, 8 / 3), (2, 0.5, 3.5), spain_1, right, spain_4, right,
    ]  # fmt: skip
    # A node's own rollouts, a leaf's own answer.
    assert evidence(tree(), "rollout") == [None, right, spain_1, None, spain_4, right]
    # Leaves: at the root 4 of 6 visits lead to "France" in 3 steps, 2 to "Spain" in 1.
    assert evidence(tree(), "tree") == [
        (2, 4 / 6, (4 * 3 + 2 * 1) / 6), right, spain_1, right, None, right,
    ]  # fmt: skip
    # Visits that ended in an answer: 1 at leaf 5, 2 at leaf 2.
    assert evidence(tree(), "judge") == [
        (2, 1 / 3, (1 * 3 + 2 * 1) / 3), right, spain_1, right, None, right,
    ]  # fmt: skip


def test_trajectory_digest_ignores_case_punctuation_and_articles() -> None:
    said = trajectory_digest([("query", "The Capital?"), ("answer", "Paris.")])
    assert said == trajectory_digest([("query", "capital"), ("answer", "paris")])
    assert said != trajectory_digest([("answer", "capital"), ("query", "paris")])
    assert said != trajectory_digest([("query", "capital paris")])


def test_rollouts_with_equal_trajectories_count_as_one_outcome() -> None:
    nodes = tree()
    again = nodes[1].rollouts[0].model_copy(update={"draw": 1})
    nodes[1] = nodes[1].model_copy(update={"rollouts": (*nodes[1].rollouts, again)})
    assert evidence(nodes, "rollout")[1] == (1, 1, 3)
