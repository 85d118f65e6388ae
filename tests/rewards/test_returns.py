"""Returns on trees small enough to compute by hand.

root ─┬─ 1 search, finds ──┬─ 3 answer, right (3 visits)
      │                    └─ 4 search, misses ── 5 answer, wrong
      └─ 2 refuse, at once
"""

import pytest
from evo_world import GOLD, Grove, rewards, step
from hypothesis import given
from hypothesis import strategies as st

from branchwise.agent.state import Step
from branchwise.rewards.evo_rag.returns import label_returns
from branchwise.rewards.evo_rag.steps import EpisodeRewards, Gold
from branchwise.rewards.outcome import Label, gap
from branchwise.rewards.settings import REWARDS
from branchwise.types import Component

FINDS, MISSES = step("search", "Lyon", "lyon"), step("search", "Osaka", "osaka")
RIGHT, WRONG = step("answer", "Paris"), step("answer", "Rome")
REFUSE, BACKTRACK, INVALID = step("refuse"), step("backtrack"), step("invalid")


def tree() -> Grove:
    grove = Grove()
    first = grove.add(0, FINDS, visits=4)
    grove.add(0, REFUSE, visits=2)
    grove.add(first, RIGHT, visits=3)
    second = grove.add(first, MISSES, visits=1)
    grove.add(second, WRONG)
    return grove


def labels(grove: Grove, scale: EpisodeRewards, gold: Gold = GOLD) -> list[Label]:
    return label_returns(grove.nodes, grove.states, gold, scale)


def returns(grove: Grove, scale: EpisodeRewards, gold: Gold = GOLD) -> list[float | None]:
    return [None if x.reward is None else round(x.reward, 9) for x in labels(grove, scale, gold)]


def test_the_return_of_an_inner_node_averages_its_children_by_visits() -> None:
    # Mid: β 1, γ 0.5, ρ 0.5, η 0.05, κ 0.1; any two queries have the cosine 0.5.
    five = -0.05
    four = -1 - 0.5 * 0.5 - 0.05 + five
    three = 0.1 - 0.05
    two = -0.5 - 0.05
    one = 1 - 0.05 + (3 * three + 1 * four) / 4
    assert one == pytest.approx(0.65)
    expected = [None, one, two, three, four, five]
    assert returns(tree(), rewards(schedule="static")) == pytest.approx(expected)
    assert [x.n_outcomes for x in labels(tree(), rewards())] == [0, 2, 1, 1, 1, 1]


def test_a_search_that_the_token_limit_ended_has_no_retrieval_reward() -> None:
    grove = Grove()
    grove.add(0, step("search", "Lyon"), terminal=True)
    missed = Grove()
    missed.add(0, step("search", "Lyon"))
    missed.add(1, WRONG)

    def retrieval(one: Grove) -> float | None:
        return next(c.value for c in labels(one, rewards())[1].components if c.name == "retrieval")

    assert (retrieval(grove), retrieval(missed)) == (None, -1.0)


def test_time_steps_start_at_0_and_grow_with_the_depth() -> None:
    # Refinement, T = 10. t = 0: β 1, η 0.05, ρ 0.5; t = 1: κ 0.19, η 0.055, β 0.95, γ 0.57;
    # t = 2: η 0.06.
    five = -0.06
    four = -0.95 - 0.57 * 0.5 - 0.055 + five
    three = 0.19 - 0.055
    one = 1 - 0.05 + (3 * three + four) / 4
    assert one == pytest.approx(0.71375)
    found = returns(tree(), rewards(max_steps=10))
    assert found == pytest.approx([None, one, -0.5 - 0.05, three, four, five])
    # With the paper's T = 20, the same call is at half the progress.
    of_20 = returns(tree(), rewards(max_steps=10, horizon=20))
    assert of_20[3] == pytest.approx(0.1 + 0.9 / 20 - (0.05 + 0.05 / 20))


def test_components_are_the_unweighted_rewards_of_the_step_and_its_return() -> None:
    first = labels(tree(), rewards(schedule="static"))[1].components
    assert [c.name for c in first] == [*REWARDS, *(f"{name}_return" for name in REWARDS)]
    own = dict(zip(REWARDS, [1.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0], strict=True))
    total = {
        "retrieval": 1 + (3 * 0 + 1 * -1) / 4,
        "action": 0.0,
        "overlap": (3 * 0 + 1 * -0.5) / 4,
        "backtrack": 0.0,
        "refusal": 0.0,
        "step": -1 + (3 * -1 + 1 * -2) / 4,
        "answer": 3 * 1.0 / 4,
    }
    values = {c.name: c.value for c in first}
    expected = own | {f"{name}_return": value for name, value in total.items()}
    assert values == pytest.approx(expected)


def test_components_do_not_depend_on_schedule_stage_or_subset() -> None:
    plain = [x.components for x in labels(tree(), rewards())]
    for settings in (
        {"stage": "discovery"},
        {"schedule": "two-stage"},
        {"schedule": "answer-only"},
        {"schedule": "none"},
        {"components": ("step", "backtrack")},
    ):
        other = labels(tree(), rewards(**settings))
        assert [x.components for x in other] == plain
        assert [x.reward for x in other] != [x.reward for x in labels(tree(), rewards())]


def test_the_total_of_an_episode_is_the_weighted_sum_over_its_steps() -> None:
    """R(x) = Σ_t Σ_k w_k(t) r_k, in Discovery with T = 10 and cosines of 0.9."""
    steps = (FINDS, MISSES, BACKTRACK, step("search", "Lyon", "lyon"), step("answer", "Paris X"))
    by_step = [
        2.0 - 0.02,
        # t = 1: β 1.9, γ 0.14, η 0.023
        -1.9 - 0.14 * 0.9 - 0.023,
        # t = 2: δ 0.34, η 0.026
        -0.34 - 0.026,
        # t = 3, a late and similar query without new documents: λ 1.29, γ 0.22, η 0.029
        -1.29 - 0.22 * 0.9 - 0.029,
        # t = 4: EM 0 and F1 2/3; κ 0.07, η 0.032
        0.07 * (0 + 2 / 3) / 2 - 0.032,
    ]
    scale = rewards(stage="discovery", cosine=0.9)
    assert scale.episode(steps, GOLD).total == pytest.approx(sum(by_step))
    for end in range(1, 6):
        assert scale.episode(steps[:end], GOLD).total == pytest.approx(sum(by_step[:end]))
    # Refusing instead: −1, as the gold document is in context. A verifier's verdict overrides it.
    refused, before = (*steps[:4], REFUSE), sum(by_step[:4]) - 0.032
    assert scale.episode(refused, GOLD).total == pytest.approx(before - 0.5)
    verified = rewards(stage="discovery", cosine=0.9, verified=True)
    worth = [verified.episode(refused, GOLD, word).total for word in (False, True, None)]
    assert worth == pytest.approx([before + 0.5, before - 0.5, before])


@pytest.mark.parametrize("value", [-0.5, -1.0, -2.0])
def test_step_value_scales_the_cost_of_a_step(value: float) -> None:
    # Refinement, T = 10, t = 0, 1: η 0.05 and 0.055; the answer is worth κ = 0.19.
    scale = rewards(step_value=value)
    found = scale.episode((step("search", "x", "lyon"), RIGHT), GOLD).total
    assert found == pytest.approx(1 + 0.19 + value * (0.05 + 0.055))


kinds = st.sampled_from([FINDS, MISSES, BACKTRACK])


@given(st.lists(kinds, max_size=7), st.sampled_from([RIGHT, WRONG, REFUSE]))
def test_the_label_of_an_unbranched_trajectory_is_its_return(inner: list[Step], last: Step) -> None:
    grove, scale = Grove(), rewards(stage="discovery")
    grove.chain(0, [*inner, last])
    found = labels(grove, scale)
    whole = scale.episode(grove.states[-1].steps, GOLD).total
    assert whole is not None
    assert found[1].reward == pytest.approx(whole)
    for place in range(1, len(found)):
        before = scale.episode(grove.states[place].steps[:-1], GOLD).total
        assert before is not None
        assert found[place].reward == pytest.approx(whole - before)


def test_invalid_ends_and_open_states_are_not_labelled_and_do_not_count() -> None:
    grove = tree()
    first = 1
    grove.add(first, INVALID, visits=50)
    opened = grove.add(first, step("search", "open"), visits=50)
    grove.add(opened, INVALID, visits=50)
    scale = rewards(schedule="static")
    assert returns(grove, scale)[:6] == returns(tree(), scale)
    assert returns(grove, scale)[6:] == [None, None, None]
    unlabelled = labels(grove, scale)[6]
    assert (unlabelled.reward, unlabelled.n_outcomes) == (None, 0)
    assert [part.name for part in unlabelled.components] == list(REWARDS), (
        "an open state has only the rewards of its own step"
    )


# A component that is None for one side is left out of both sums.


def test_gap_ignores_the_retrieval_of_a_search_without_known_gold() -> None:
    unknown = Gold(("Paris",), answerable=True, documents=None)
    grove = Grove()
    searched = grove.add(0, FINDS)
    grove.add(0, WRONG)
    grove.add(searched, RIGHT)
    scale = rewards(schedule="static")
    found = labels(grove, scale, unknown)
    search, answer = found[1], found[2]
    assert search.weighted["retrieval"] is None
    assert Component(name="retrieval_return", value=None) in search.components
    # κ and two steps against one step; β counts for neither side.
    assert gap(search, answer) == pytest.approx((0.1 - 0.1) - (-0.05))
    assert gap(answer, search) == pytest.approx(-gap(search, answer))
    assert search.reward == pytest.approx(0.1 - 0.1)


def test_gap_ignores_the_refusal_reward_if_a_verdict_is_missing() -> None:
    grove = Grove()
    searched = grove.add(0, FINDS)
    grove.add(searched, REFUSE)  # the verifier's reply was unreadable
    grove.add(searched, RIGHT)
    grove.add(searched, REFUSE, verdict=False)
    unheard, right, heard = labels(grove, rewards(schedule="static", verified=True))[2:]
    assert unheard.weighted["refusal"] is None
    assert gap(right, unheard) == pytest.approx(0.1)
    assert gap(heard, right) == pytest.approx(0.5 - 0.1)
    assert gap(heard, unheard) == 0.0
    # The parent's mean is over the children with a refusal reward: (0 + 1) / 2.
    parent = {c.name: c.value for c in labels(grove, rewards(verified=True))[1].components}
    assert parent["refusal_return"] == pytest.approx(0.5)
    assert parent["refusal"] == 0.0


def test_a_return_that_is_none_for_every_child_is_none_for_the_parent() -> None:
    unanswerable = Gold((), answerable=False, documents=None)
    grove = Grove()
    grove.chain(0, [MISSES, BACKTRACK, MISSES, REFUSE])
    found = labels(grove, rewards(schedule="static"), unanswerable)
    of = [{c.name: c.value for c in x.components} for x in found[1:]]
    assert [x["retrieval"] for x in of] == [None, 0.0, None, 0.0]
    assert [x["retrieval_return"] for x in of] == [None, None, None, 0.0]
    assert [x["refusal_return"] for x in of] == [1.0] * 4
    # ρ 0.5, δ 0.5, γ 0.5 · 0.5, four steps of 0.05.
    assert found[1].reward == pytest.approx(0.5 - 0.5 - 0.25 - 0.2)


def test_gap_of_labels_without_components_is_the_difference_of_rewards() -> None:
    assert gap(Label(0.75, 1), Label(0.25, 3)) == 0.5
    with pytest.raises(ValueError, match="without a reward"):
        gap(Label(None, 0), Label(0.25, 3))
