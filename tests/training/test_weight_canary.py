"""The canary: an engine that does not serve the weights in training stops the training."""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tiny_llama import random_llama
from trained_engine import TrainedEngine

from branchwise.base.errors import TrainingError
from branchwise.engines.sampling import Completion, SampleRequest
from branchwise.training.grpo.canary import Canary
from branchwise.types import Message

pytestmark = pytest.mark.model

PROMPTS = [(Message("user", f"What is {n}?"),) for n in range(3)]
LOOSE = 1.0
"""A tolerance that no small movement exceeds."""


@pytest.fixture(scope="module")
def start() -> Iterator[Any]:
    """Yields a random model on one thread; for so small a model, more threads are slower."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield random_llama().eval()
    torch.set_num_threads(threads)


def engine(weights: Any) -> TrainedEngine:
    return TrainedEngine(lambda _: "It is a number.", weights=weights)


def moved(model: Any, by: float) -> Any:
    """Returns a copy of a model whose weights are all a little different."""
    import torch

    torch.manual_seed(1)
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=by)
    return copy


async def test_an_engine_with_the_trainers_weights_passes(start: Any) -> None:
    canary, later = Canary(PROMPTS, tolerance=1e-3), moved(start, 0.01)
    first = await canary.check(engine(deepcopy(start)), start)
    assert (first.error, first.moved) == (pytest.approx(0, abs=1e-4), None)
    second = await canary.check(engine(deepcopy(later)), later)
    assert second.error == pytest.approx(0, abs=1e-4)
    assert second.moved is not None and second.moved > 1e-3


async def test_an_engine_with_stale_weights_is_detected(start: Any) -> None:
    """Stale weights are detected even if the error is within the tolerance."""
    canary, served = Canary(PROMPTS, LOOSE), engine(deepcopy(start))
    await canary.check(served, start)
    with pytest.raises(TrainingError, match="still serves the weights of the previous batch"):
        await canary.check(served, moved(start, 0.001))


async def test_an_engine_with_other_weights_is_detected(start: Any) -> None:
    """Checked at the first batch, and after an update that reached another model."""
    with pytest.raises(TrainingError, match="does not serve the weights"):
        await Canary(PROMPTS, 0.06).check(engine(moved(start, 0.1)), start)
    canary = Canary(PROMPTS, 0.06)
    await canary.check(engine(start), start)
    with pytest.raises(TrainingError, match="does not serve the weights"):
        await canary.check(engine(moved(start, 0.1)), moved(start, 0.01))


async def test_mixed_precision_of_the_trainer_does_not_affect_the_comparison(start: Any) -> None:
    """A `Trainer` with bf16 runs the adapter's model in bfloat16, but its weights are float32."""
    import torch
    from peft import LoraConfig, get_peft_model

    policy = get_peft_model(deepcopy(start), LoraConfig(target_modules=["q_proj", "v_proj"]))
    served = engine(deepcopy(start))
    policy.forward = torch.autocast("cpu", torch.bfloat16)(policy.forward)  # as accelerate does
    assert (await Canary(PROMPTS, tolerance=1e-3).check(served, policy)).error < 1e-4


async def test_an_unchanged_trainer_passes(start: Any) -> None:
    canary = Canary(PROMPTS, LOOSE)
    for _ in range(2):
        checked = await canary.check(engine(start), start)
    assert checked.moved == 0.0


@dataclass
class Spoilt(TrainedEngine):
    """Engine whose log-probabilities are changed by `spoil`."""

    spoil: Callable[[tuple[float, ...]], tuple[float, ...] | None] = lambda logps: logps

    async def sample(self, request: SampleRequest) -> Completion:
        said = await super().sample(request)
        return replace(said, logprobs=self.spoil(said.logprobs or ()))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda logps: (math.nan, *logps[1:]), id="nan"),
        pytest.param(lambda logps: (-math.inf, *logps[1:]), id="infinite"),
        pytest.param(lambda logps: None, id="none"),
        pytest.param(lambda logps: logps[1:], id="too few"),
    ],
)
async def test_missing_or_non_finite_logprobs_stop_the_training(spoil: Any, start: Any) -> None:
    spoilt = Spoilt(lambda _: "It is a number.", weights=start, spoil=spoil)
    with pytest.raises(TrainingError, match="log-probabilities"):
        await Canary(PROMPTS, 0.06).check(spoilt, start)
