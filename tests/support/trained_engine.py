"""An engine that gives scripted texts the log-probabilities of a model in this process."""

from dataclasses import dataclass, field, replace
from typing import Any

from scripted_engine import SpellingEngine

from branchwise.engines.sampling import Completion, SampleRequest


@dataclass
class TrainedEngine(SpellingEngine):
    """A `SpellingEngine` that serves weights.

    Attributes:
        weights: A causal model of transformers, whose vocabulary holds all characters.
    """

    weights: Any = field(kw_only=True)

    async def sample(self, request: SampleRequest) -> Completion:
        import torch

        said = await super().sample(request)
        prompt, sampled = said.prompt_ids or (), said.token_ids or ()
        ids = torch.tensor([[*prompt, *sampled]])
        with torch.no_grad():
            output = self.weights(input_ids=ids, logits_to_keep=len(sampled) + 1)
        logps = output.logits[0, :-1].log_softmax(-1)
        own = logps.gather(1, ids[0, len(prompt) :, None])[:, 0]
        return replace(said, logprobs=tuple(own.tolist()))
