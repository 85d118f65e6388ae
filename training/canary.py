"""Proof that an engine serves the weights that are being trained.

Adapters that never reach the rollouts look like a training that does not learn. So after each
update a canary is asked: some fixed prompts, continued greedily. The engine's log-probabilities of
its own tokens must be those of the trainer, and they must have moved if the trainer's have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from engines.sampling import CallIdentity, Completion, Engine, SampleRequest, Sampling
from engines.settings import ModelSettings
from storage.errors import TrainingError
from storage.records import Message

TOLERANCE = {
    "f16": 0.06,
    "q8_0": 0.3,
    # Those of vLLM are not measured: no GPU was at hand. In bfloat16 a logit between 16 and 32 is
    # rounded to a multiple of 0.125.
    "auto": 0.15,
    "bfloat16": 0.15,
    "float16": 0.03,
    "float32": 0.03,
}
"""Largest root mean square of the difference of log-probabilities, in nats, by the `precision` of
the embedded engine (see `benchmarks.weight_sync`) or the `dtype` of vLLM."""

_LEAST_MOVE = 1e-3
"""Nats a token: a smaller movement of the trainer's may vanish in the rounding of the weights."""

_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=24)


def tolerance_for(policy: ModelSettings) -> float:
    """Returns the `TOLERANCE` of a policy's engine."""
    return TOLERANCE[policy.dtype if policy.engine == "vllm" else policy.precision]


@dataclass(frozen=True, slots=True)
class Sung:
    """Result of a canary.

    Attributes:
        error: Root mean square of engine minus trainer, in nats per token.
        moved: Root mean square of the trainer's movement since the weights that were served
            before, in nats per token; None the first time.
    """

    error: float
    moved: float | None


@dataclass
class Canary:
    """Fixed prompts, and their last continuations.

    Attributes:
        prompts: Messages of each prompt.
        tolerance: Largest error, in nats; see `TOLERANCE`.
    """

    prompts: Sequence[tuple[Message, ...]]
    tolerance: float
    _last: list[Completion] | None = field(default=None, init=False)
    _last_logps: list[float] = field(default_factory=list, init=False)

    async def sing(self, engine: Engine, model: Any) -> Sung:
        """Asks the engine and the model that is trained.

        Args:
            engine: Serves the weights of `model`, or should.
            model: A causal model of transformers, on any device.

        Raises:
            TrainingError: If the engine serves other weights.
        """
        heard = [
            await engine.sample(
                SampleRequest(
                    prompt, _SAMPLING, CallIdentity("policy", "canary", str(place)), tokens=True
                )
            )
            for place, prompt in enumerate(self.prompts)
        ]
        told = [logp for one in heard for logp in one.logprobs or ()]
        own, moved = _logps(model, heard), None
        if len(told) != len(own):
            raise TrainingError(
                f"{engine.model}: {len(told)} log-probabilities for {len(own)} sampled tokens, so "
                "nothing proves which weights the engine serves"
            )
        error = _distance(told, own)
        if self._last is not None:
            moved = _distance(_logps(model, self._last), self._last_logps)
            if moved > _LEAST_MOVE and _same(heard, self._last):
                raise TrainingError(
                    f"{engine.model}: the engine still serves the weights of the batch before. The "
                    f"trainer's log-probabilities moved by {moved:.4f} nats per token, the "
                    "engine's did not move"
                )
        if not error <= self.tolerance:
            raise TrainingError(
                f"{engine.model}: the engine does not serve the weights that are trained. Its "
                f"log-probabilities differ from the trainer's by {error:.4f} nats per token "
                f"(allowed: {self.tolerance}); the trainer's last update moved them by "
                f"{moved or 0.0:.4f}"
            )
        self._last, self._last_logps = heard, own
        return Sung(error, moved)


def _logps(model: Any, heard: Sequence[Completion]) -> list[float]:
    """Returns the log-probabilities of the sampled tokens under `model`, at temperature 1."""
    import torch

    found: list[float] = []
    device = next(model.parameters()).device
    for one in heard:
        sampled = one.token_ids or ()
        ids = torch.tensor([[*(one.prompt_ids or ()), *sampled]], device=device)
        with torch.no_grad():
            logits = model(input_ids=ids, logits_to_keep=len(sampled) + 1, use_cache=False).logits
        logps = logits[0, :-1].float().log_softmax(dim=-1)
        found += logps.gather(1, ids[0, -len(sampled) :, None])[:, 0].tolist()
    return found


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    pairs = list(zip(one, other, strict=True))
    return sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))


def _same(heard: Sequence[Completion], before: Sequence[Completion]) -> bool:
    return all(
        (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
        for one, other in zip(heard, before, strict=True)
    )
