"""Training rows of rollouts: which tokens are trained on, and the weight of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.modeling.token_tree import prefix_tree
from branchwise.training.grpo.loss import advantages_of
from branchwise.training.grpo.rollouts import (
    PolicyCall,
    TrainingRollout,
    TrainingRow,
    batch_indices,
    rows_of,
    sample_rows,
)
from branchwise.training.packing import StepTokens
from branchwise.training.settings import OUTCOME_RL, GrpoSettings, ReinforceSettings


def rollout(reward: float, *lengths: int, question: str = "q") -> TrainingRollout:
    """Returns a rollout of one turn; each prompt adds two inserted tokens to the previous call."""
    prompt: tuple[int, ...] = (1, 2, 3)
    calls, next_id = [], 10 + int(100 * reward)
    for length in lengths:
        sampled = tuple(range(next_id, next_id + length))
        calls.append(PolicyCall(StepTokens(prompt, sampled)))
        prompt, next_id = (*prompt, *sampled, 7, 8), next_id + length
    return TrainingRollout(question, tuple(calls), reward)


def flat(rollouts: Sequence[TrainingRollout]) -> list[tuple[TrainingRollout, list[float]]]:
    """Returns rollouts with an advantage of 1 for each token."""
    return [(one, [1.0] * one.sampled) for one in rollouts]


def summed(rows: Sequence[TrainingRow], losses: Sequence[Sequence[float]]) -> float:
    return sum(row.weight * loss for row, own in zip(rows, losses, strict=True) for loss in own)


@pytest.mark.parametrize(("aggregation", "expected"), [("rollout", 2.0), ("token", 1.8)])
def test_inserted_tokens_count_neither_in_the_loss_nor_in_the_length(
    aggregation: str, expected: float
) -> None:
    """The worked case: losses [1 1 · · 1] and [2 4], where the dots are inserted tokens."""
    rollouts = [rollout(1, 2, 1), rollout(0, 2)]
    rows = rows_of(flat(rollouts), aggregation=aggregation)  # type: ignore[arg-type]
    assert summed(rows, [[1, 1], [1], [2, 4]]) == pytest.approx(expected)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=6))
def test_long_and_short_rollouts_have_the_same_total_weight(lengths: list[list[int]]) -> None:
    rollouts = [rollout(place, *own) for place, own in enumerate(lengths)]
    rows = rows_of(flat(rollouts))
    counted = iter(rows)
    for own in lengths:
        mass = sum(row.weight * len(row.tokens.step) for row in (next(counted) for _ in own))
        assert mass == pytest.approx(1 / len(rollouts))


def test_advantages_are_split_by_call_with_their_tokens() -> None:
    one = rollout(1, 2, 3)
    rows = rows_of([(one, [0.1, 0.2, 0.3, 0.4, 0.5])])
    assert [row.advantages for row in rows] == [(0.1, 0.2), (0.3, 0.4, 0.5)]
    assert [row.tokens for row in rows] == [call.tokens for call in one.calls]


def test_the_calls_of_a_turn_form_one_path_in_the_prefix_tree() -> None:
    one = rollout(1, 4, 3)
    last = one.calls[-1].tokens
    tree = prefix_tree([call.tokens.whole for call in one.calls])
    assert tree.tokens == [*last.prompt, *last.step]


@given(st.integers(1, 60), st.integers(0, 5))
def test_drawn_rows_are_reweighted_for_the_rows_left_out(most: int, seed: int) -> None:
    rollouts = [rollout(place, 3, 2) for place in range(4)]
    rows = rows_of(flat(rollouts))
    kept = sample_rows(rows, most, str(seed))
    tokens = len(prefix_tree([r.tokens.whole for r in kept]).tokens)
    assert kept and (tokens <= most or len(kept) == 1)
    raised = rows[0].weight * len(rows) / len(kept)
    assert [row.weight for row in kept] == pytest.approx([raised] * len(kept))
    assert sample_rows(rows, most, str(seed)) == kept


@pytest.mark.parametrize("most", [None, 5])
def test_drawn_rows_keep_the_engines_logprobs(most: int | None) -> None:
    one = rollout(1, 2)
    call = replace(one.calls[0], logprobs=(-0.5, -0.25))
    (row,) = sample_rows(rows_of([(replace(one, calls=(call,)), [1.0, 1.0])]), most, "0")
    assert row.logprobs == (-0.5, -0.25)


def test_groups_without_spread_and_single_rollouts_have_no_advantages() -> None:
    groups = [
        [rollout(1, 1, question="a"), rollout(0, 1, question="a")],
        [rollout(1, 1, question="b"), rollout(1, 2, question="b")],
        [rollout(1, 1, question="c")],
        [],
    ]
    for algorithm in ("grpo", "rloo"):
        found = advantages_of(groups, OUTCOME_RL[algorithm].model_validate({}))
        assert [one.question_id for one, _ in found] == ["a", "a", "b", "b", "c"]
        assert [one.question_id for one, own in found if any(own)] == ["a", "a"]


def test_rollouts_without_advantages_count_in_the_mean_but_give_no_rows() -> None:
    rollouts = [rollout(1, 2), rollout(0, 1), rollout(0.5, 3), rollout(0.2, 4)]
    advantages = [[1.0, 1.0], [-1.0], [0.0] * 3, [0.0] * 4]
    pairs = list(zip(rollouts, advantages, strict=True))
    rows = rows_of(pairs, has_kl=False)
    assert [row.weight for row in rows] == [1 / (4 * 2), 1 / 4]
    (token_weight,) = {row.weight for row in rows_of(pairs, aggregation="token", has_kl=False)}
    assert token_weight == 1 / 10
    assert len(rows_of(pairs)) == 4, "the divergence of all rollouts counts"


def test_reinforce_does_not_amplify_the_rounding_of_equal_rewards() -> None:
    groups = [[rollout(0.1, 1)] * 3, [rollout(1.0, 1)] * 3]
    found = advantages_of(groups, ReinforceSettings())
    assert {advantage for _, own in found for advantage in own} == {0.0}


@given(st.integers(0, 20), st.integers(1, 9), st.integers(1, 7))
def test_batches_take_every_item_once_per_epoch(number: int, size: int, total: int) -> None:
    drawn_so_far = [
        chosen for n in range(number + 1) for chosen in batch_indices(n, size, total, "seed")
    ]
    assert len(set(drawn_so_far)) == len(drawn_so_far) == (number + 1) * size
    epochs = Counter(epoch for epoch, _ in drawn_so_far)
    assert all(epochs[epoch] == total for epoch in range(len(drawn_so_far) // total))


def test_reinforce_returns_subtract_the_divergence_from_each_token_on() -> None:
    one, other = rollout(1, 1, 1), rollout(0, 2)
    settings = ReinforceSettings(baseline="none", kl="k1", kl_in="reward", beta=0.5)
    log_ratios = {
        one.calls[0].tokens: (0.2,),
        one.calls[1].tokens: (0.4,),
        other.calls[0].tokens: (0.0, -0.2),
    }
    trainable = advantages_of([[one, other]], settings, log_ratios)
    found = {rollout.reward: advantages for rollout, advantages in trainable}
    returns = [0.7, 0.8, 0.1, 0.1]
    mean = sum(returns) / 4
    deviation = (sum((r - mean) ** 2 for r in returns) / 4) ** 0.5
    expected = [(r - mean) / deviation for r in returns]
    assert [*found[1], *found[0]] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("baseline", "returns"), [("group", [0.0, 0.0, 0.5, -0.5]), ("none", [1.0, 1.0, 1.0, 0.0])]
)
def test_the_baseline_of_reinforce_is_the_group_mean_or_zero(
    baseline: str, returns: list[float]
) -> None:
    groups = [[rollout(1, 1), rollout(1, 1)], [rollout(1, 1), rollout(0, 1)]]
    settings = ReinforceSettings.model_validate({"baseline": baseline})
    found = [advantage for _, (advantage,) in advantages_of(groups, settings)]
    mean, deviation = fmean(returns), pstdev(returns)
    assert found == pytest.approx([(one - mean) / deviation for one in returns])


def test_grpo_subtracts_the_divergence_of_the_whole_rollout_from_its_reward() -> None:
    one, other = rollout(1, 1, 1), rollout(1, 2)
    log_ratios = {
        one.calls[0].tokens: (1.0,),
        one.calls[1].tokens: (1.0,),
        other.calls[0].tokens: (0.0, 0.0),
    }
    settings = GrpoSettings(scale="none", kl="k1", kl_in="reward", beta=0.1)
    found = advantages_of([[one, other]], settings, log_ratios)
    assert [advantages for _, advantages in found] == [
        pytest.approx([-0.1, -0.1]),
        pytest.approx([0.1, 0.1]),
    ]


def test_the_weight_of_the_divergence_counts_in_groups_without_spread() -> None:
    one, other = rollout(1, 1), rollout(1, 2)
    log_ratios = {one.calls[0].tokens: (1.0,), other.calls[0].tokens: (0.0, 0.0)}
    for beta in (0.01, 0.1):
        settings = GrpoSettings(kl="k1", kl_in="reward", beta=beta)
        (_, low), (_, high) = advantages_of([[one, other]], settings, log_ratios)
        assert (low, high) == (pytest.approx([-beta / 2]), pytest.approx([beta / 2] * 2))


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"kl": "k1"}, "expected gradient of k1"),
        ({"kl": "k2", "kl_in": "reward"}, "loss term"),
        ({"stages": [{"name": "a"}, {"name": "a"}]}, "two have the same name"),
        ({"updates": 9, "batch_questions": 2, "group_size": 4}, "fewer rollouts"),
    ],
)
def test_incompatible_settings_are_refused(block: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        GrpoSettings(**block)  # type: ignore[arg-type]
