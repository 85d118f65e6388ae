"""Checks that an engine serves the weights that are being trained.

If an adapter never reaches the rollouts, training looks as if it does not learn. So before each
batch of rollouts the engine continues a few fixed prompts greedily. Its log-probabilities of the
tokens it samples must equal the trainer's, and they must have moved if the trainer's have.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import sqrt
from typing import Any

from branchwise.base import TrainingError
from branchwise.engines import (
    CallIdentity,
    Completion,
    Engine,
    ModelSettings,
    SampleRequest,
    Sampling,
    each_server,
)
from branchwise.types import Message

TOLERANCE = {
    "f16": 0.06,
    "q8_0": 0.3,
    # vLLM's are estimates: no GPU was available. In bfloat16 a logit between 16 and 32 is rounded
    # to a multiple of 0.125.
    "auto": 0.15,
    "bfloat16": 0.15,
    "float16": 0.03,
    "float32": 0.03,
}
"""Largest root mean square difference of log-probabilities, in nats per token, by the `precision`
of the embedded engine (measured with `benchmarks.weight_sync`) or the `dtype` of vLLM."""

_LEAST_MOVE = 1e-3
"""Smallest movement of the trainer that the engine has to follow, in nats per token. A smaller one
may vanish in the rounding of the weights."""

_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=24)


def tolerance_for(policy: ModelSettings) -> float:
    """Returns the `TOLERANCE` of a policy's engine."""
    return TOLERANCE[policy.dtype if policy.engine == "vllm" else policy.precision]


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """Result of one check.

    Attributes:
        error: Root mean square of engine minus trainer, in nats per token.
        moved: Root mean square of the trainer's movement since the previous check, in nats per
            token; None at the first check.
    """

    error: float
    moved: float | None


@dataclass
class Canary:
    """Fixed prompts with their previous continuations.

    Attributes:
        prompts: Messages of each prompt.
        tolerance: Largest error, in nats per token; see `TOLERANCE`.
    """

    prompts: Sequence[tuple[Message, ...]]
    tolerance: float
    _previous: list[Completion] = field(default_factory=list, init=False)
    _previous_logps: list[list[float]] = field(default_factory=list, init=False)

    async def check(self, engine: Engine, model: Any) -> CanaryResult:
        """Compares the engine with the model that is trained.

        Args:
            engine: Engine that should serve the weights of `model`; every server of a fleet.
            model: Causal language model of transformers, on any device.

        Raises:
            TrainingError: If the engine serves other weights.
        """
        first, *others = each_server(engine)
        completions, trainer_logps, error = await self._compared(first, model)
        for server in others:
            error = max(error, (await self._compared(server, model))[2])
        moved = None
        if self._previous:
            # A forward pass takes as long as the engine's whole reply, so none is run twice.
            now = [
                logps if current.token_ids == previous.token_ids else _logps(model, previous)
                for current, logps, previous in zip(
                    completions, trainer_logps, self._previous, strict=True
                )
            ]
            moved = _distance(now, self._previous_logps)
            if moved > _LEAST_MOVE and _samples(completions) == _samples(self._previous):
                raise TrainingError(
                    f"{engine.model}: the engine still serves the weights of the previous batch. "
                    f"The trainer's log-probabilities moved by {moved:.4f} nats per token, the "
                    "engine's did not move"
                )
        if not error <= self.tolerance:
            raise TrainingError(
                f"{engine.model}: the engine does not serve the weights that are trained. Its "
                f"log-probabilities differ from the trainer's by {error:.4f} nats per token "
                f"(allowed: {self.tolerance}); the trainer's moved since the last check by "
                f"{moved or 0.0:.4f}"
            )
        self._previous, self._previous_logps = completions, trainer_logps
        return CanaryResult(error, moved)

    async def _compared(
        self, engine: Engine, model: Any
    ) -> tuple[list[Completion], list[list[float]], float]:
        """Returns the continuations of one server, the trainer's log-probabilities of their tokens,
        and the root mean square difference.
        """
        requests = [
            SampleRequest(prompt, _SAMPLING, CallIdentity("policy", "canary", str(n)), tokens=True)
            for n, prompt in enumerate(self.prompts)
        ]
        completions = await asyncio.gather(*map(engine.sample, requests))
        engine_logps = [list(completion.logprobs or ()) for completion in completions]
        trainer_logps = [_logps(model, completion) for completion in completions]
        if list(map(len, engine_logps)) != list(map(len, trainer_logps)):
            raise TrainingError(
                f"{engine.model}: {sum(map(len, engine_logps))} log-probabilities for "
                f"{sum(map(len, trainer_logps))} sampled tokens, so nothing proves which weights "
                "the engine serves"
            )
        return completions, trainer_logps, _distance(engine_logps, trainer_logps)


def _logps(model: Any, completion: Completion) -> list[float]:
    """Returns the log-probabilities of the sampled tokens under `model`, at temperature 1."""
    import torch

    # The trainer may have wrapped the forward pass of a PEFT model in bfloat16, whose rounding
    # errors of 0.02 to 0.07 nats would hide wrong weights. The model inside it is not wrapped.
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    sampled = completion.token_ids or ()
    device = next(model.parameters()).device
    ids = torch.tensor([[*(completion.prompt_ids or ()), *sampled]], device=device)
    with torch.no_grad():
        logits = model(input_ids=ids, logits_to_keep=len(sampled) + 1, use_cache=False).logits
    logps = logits[0, :-1].float().log_softmax(dim=-1)
    of_sampled = logps.gather(1, ids[0, len(ids[0]) - len(sampled) :, None])[:, 0]
    return list(of_sampled.tolist())


def _distance(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    pairs = list(zip(chain(*first), chain(*second), strict=True))
    return sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))


def _samples(completions: Sequence[Completion]) -> list[tuple[Any, Any]]:
    return [(completion.token_ids, completion.logprobs) for completion in completions]
