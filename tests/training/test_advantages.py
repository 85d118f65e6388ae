"""Advantages, the clipped loss and the estimates of the divergence, on worked cases."""

from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from branchwise.training.grpo.loss import (
    Estimator,
    TokenMeans,
    clipped_loss,
    discounted_returns,
    divergence,
    group_advantages,
    has_spread,
    is_clipped,
    leave_one_out,
    standardised,
)

ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3")
REWARDS = st.lists(st.floats(-13, 13), min_size=2, max_size=16)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        pytest.param(
            [13, 2.5, 2.5, 2, 1, 1, 0],
            [2.2194, -0.1447, -0.1447, -0.2573, -0.4825, -0.4825, -0.7076],
            id="one bonus of ARENA squeezes the differences among the others",
        ),
        pytest.param([2] * 5, [0.0] * 5, id="no contrast, no gradient"),
        pytest.param([1, 0, 0, 0, 0], [1.7889] + [-0.4472] * 4, id="one right"),
        pytest.param([0.1, 0, 0, 0, 0], [1.7850] + [-0.4463] * 4, id="a tenth is worth as much"),
    ],
)
def test_group_advantages_are_standardised_by_mean_and_deviation(
    rewards: list[float], expected: list[float]
) -> None:
    assert group_advantages(rewards) == pytest.approx(expected, abs=1e-3)


def test_unscaled_advantages_keep_the_size_of_the_rewards() -> None:
    assert group_advantages([1, 0, 0, -2], "none") == [1.25, 0.25, 0.25, -1.75]
    assert group_advantages([0.1, 0, 0, 0, 0], "none")[0] == pytest.approx(0.08)


@given(REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    for advantages in (group_advantages(rewards), leave_one_out(rewards)):
        assert sum(advantages) == pytest.approx(0, abs=1e-6 * len(rewards) * 13)


@given(REWARDS)
def test_leave_one_out_scales_the_mean_difference_by_n_over_n_minus_1(rewards: list[float]) -> None:
    enlarged = len(rewards) / (len(rewards) - 1)
    expected = [enlarged * one for one in group_advantages(rewards, "none")]
    assert leave_one_out(rewards) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("rewards", "spread"), [([1.0], False), ([], False), ([1.0, 1.0], False), ([1.0, 0.0], True)]
)
def test_spread_needs_two_different_rewards(rewards: list[float], spread: bool) -> None:
    assert has_spread(rewards) is spread


def test_returns_subtract_the_divergence_of_this_and_later_tokens() -> None:
    assert discounted_returns(1.0, [0.1, -0.2, 0.4], beta=0.5) == pytest.approx([0.85, 0.9, 0.8])


def test_values_are_standardised_over_all_tokens_of_all_rollouts() -> None:
    found = standardised([[1.0, 2.0, 3.0], [4.0]])
    flat = [value for rollout in found for value in rollout]
    assert [len(rollout) for rollout in found] == [3, 1]
    assert fmean(flat) == pytest.approx(0) and pstdev(flat) == pytest.approx(1)
    assert standardised([[2.0], [2.0, 2.0]]) == [[0.0], [0.0, 0.0]]
    assert [value for (value,) in standardised([[2.0], [2.000002]])] == pytest.approx([-1, 1])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.3, -1, 1.3, False),  # the loss is minus the worked case's surrogate
        (0.7, -1, 0.8, True),
        (1.3, 1, -1.2, True),
        (0.7, 1, -0.7, False),
        (1.0, 2, -2.0, False),
        (1.3, 0, 0.0, False),  # clipping stops nothing
        (0.7, 0, 0.0, False),
    ],
)
def test_clipped_loss_and_clip_flag_match_worked_cases(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    one, other = torch.tensor([ratio]), torch.tensor([float(advantage)])
    assert clipped_loss(one, other, 0.2).item() == pytest.approx(loss)
    assert is_clipped(one, other, 0.2).item() is clipped


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_tokens_are_clipped_if_clipping_stops_their_gradient(advantage: float) -> None:
    ratio = torch.tensor([0.5, 0.75, 1.0, 1.25, 1.5], requires_grad=True)
    advantages = torch.full_like(ratio, advantage)
    clipped_loss(ratio, advantages, 0.25).sum().backward()
    assert ratio.grad is not None
    assert is_clipped(ratio, advantages, 0.25).tolist() == (ratio.grad == 0).tolist()


def test_token_means_weight_by_token_and_omit_non_finite_values() -> None:
    seen = TokenMeans()
    for values in ([1.0, 2.0, 3.0], [10.0]):
        seen.add("kl", torch.tensor(values))
    seen.add("entropy", torch.tensor([float("nan")]))
    seen.add("clip_share", torch.tensor([]))
    assert seen.means() == {"kl": 4.0}


@pytest.mark.parametrize(
    ("d", "expected"),
    [
        (0.5, (0.5, 0.125, 0.106531)),
        (-0.5, (-0.5, 0.125, 0.148721)),
        (3.0, (3.0, 4.5, 2.049787)),
        (-3.0, (-3.0, 4.5, 16.085537)),
    ],
)
def test_divergence_estimators_match_worked_values(d: float, expected: tuple[float, ...]) -> None:
    found = [divergence(name, torch.tensor(d)).item() for name in ESTIMATORS]
    assert found == pytest.approx(expected, abs=1e-5)


def expected_gradient(
    estimator: Estimator, theta: torch.Tensor, start: torch.Tensor
) -> list[float]:
    """Returns the exact expected gradient of the loss term; the sampling is not differentiated."""
    theta = theta.clone().requires_grad_()
    log_policy, log_start = theta.log_softmax(0), start.log_softmax(0)
    sampled = log_policy.detach().exp()
    (sampled * divergence(estimator, log_policy - log_start)).sum().backward()
    assert theta.grad is not None
    return list(theta.grad.tolist())


def true_gradient(theta: torch.Tensor, start: torch.Tensor, *, forward: bool) -> list[float]:
    theta = theta.clone().requires_grad_()
    policy, reference = theta.log_softmax(0), start.log_softmax(0)
    one, other = (policy, reference) if forward else (reference, policy)
    divergence_of: torch.Tensor = (one.exp() * (one - other)).sum()
    divergence_of.backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    return list(theta.grad.tolist())


def test_expected_gradients_of_the_divergence_estimators() -> None:
    """ARENA, appendix B. Exact, because the sum runs over all three actions."""
    theta, start = torch.tensor([0.2, -0.1, 0.4]), torch.tensor([-0.3, 0.5, 0.0])
    found = {name: expected_gradient(name, theta, start) for name in ESTIMATORS}
    assert found["k1"] == pytest.approx([0, 0, 0], abs=1e-6)
    assert found["k2"] == pytest.approx([0.10679, -0.19599, 0.0892], abs=1e-4)
    assert found["k3"] == pytest.approx([0.11902, -0.23633, 0.1173], abs=1e-4)
    assert found["k2"] == pytest.approx(true_gradient(theta, start, forward=True), abs=1e-6)
    assert found["k3"] == pytest.approx(true_gradient(theta, start, forward=False), abs=1e-6)
