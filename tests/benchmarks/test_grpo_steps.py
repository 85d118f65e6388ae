"""The benchmark against TRL: both trainers compute the same step from the same rollouts."""

from pathlib import Path

import pytest
from tiny_llama import write_tiny_folder
from training_settings import training_settings

from benchmarks.grpo_steps import Shape, distance, random_rollouts, train_once, turn_of
from branchwise.training.grpo.rollouts import PolicyCall, TrainingRollout
from branchwise.training.packing import StepTokens


def call(prompt: tuple[int, ...], *step: int) -> PolicyCall:
    return PolicyCall(StepTokens(prompt, step))


def test_turn_of_joins_policy_and_environment_tokens_in_order() -> None:
    rollout = TrainingRollout("q", (call((1, 2), 3, 4), call((1, 2, 3, 4, 9, 9), 5)), 0.0)
    assert turn_of(rollout) == ([1, 2], [3, 4, 9, 9, 5], [1, 1, 0, 0, 1])


def test_turn_of_rejects_a_rollout_whose_prompts_are_rewritten() -> None:
    with pytest.raises(ValueError, match="rewrites"):
        turn_of(TrainingRollout("q", (call((1, 2), 3), call((1, 7), 5)), 0.0))


@pytest.mark.model
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_both_trainers_take_the_same_first_step(beta: float, tmp_path: Path) -> None:
    start = str(write_tiny_folder(tmp_path / "tiny"))
    groups = random_rollouts(Shape(prompt=40, calls=(1, 3), sampled=6, inserted=9), 2, 2)
    settings = training_settings(
        "grpo", batches=1, batch_questions=2, group_size=2, beta=beta, max_tokens=None
    )
    ours, trl = (train_once(start, groups, settings, micro, threads=1) for micro in (0, 2))
    assert distance(ours.gradient, trl.gradient) < 1e-4
    assert ours.loss == pytest.approx(trl.loss, rel=1e-3, abs=1e-6)
    assert ours.learned < trl.learned
    assert (ours.read > 0, trl.read > 0) == (True, beta > 0)
