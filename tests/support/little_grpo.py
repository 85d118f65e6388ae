"""`branchwise train-grpo` with a policy that is trained but writes scripted texts.

Importing this module replaces the engine of the stage and reads the tokenizer, in the process from
which `stages.Stages` forks. The engine appends the key of every call that it answers to the file
LITTLE_LOG, one per line.
"""

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

# Imported here for all children, because each of these imports takes seconds.
import datasets  # noqa: F401
import peft  # noqa: F401
import transformers.trainer  # noqa: F401
import trl.trainer.utils  # noqa: F401
from trained_engine import TrainedEngine

from branchwise.engines.sampling import SampleRequest, call_key, derived_seed
from branchwise.pipelines.train_grpo import stage as train_grpo
from branchwise.runs import preflight
from branchwise.weights import policies as policy_files


class LittleServing:
    """Serves the current weights under their hash (see `train_grpo.generated_rollouts.Serving`)."""

    def __init__(self, *_: object) -> None:
        """Accepts the arguments of `pipelines.train_grpo.policy_serving.serving_for`."""

    @asynccontextmanager
    async def serve(self, model: Any) -> AsyncIterator[TrainedEngine]:
        hashed = hashlib.sha256()
        for parameter in model.parameters():
            if parameter.requires_grad:
                hashed.update(parameter.detach().numpy().tobytes())
        digest = hashed.hexdigest()

        def written(request: SampleRequest) -> str:
            """Searches once, then answers; the call's key decides whether it is right."""
            if request.identity.question_id == "canary":
                return "Hm."
            key = call_key(request, digest)
            with Path(os.environ["LITTLE_LOG"]).open("a") as log:
                log.write(f"{key}\n")
            seed = derived_seed(key)
            if request.prefix is None:
                return f"<search>{('Lyon', 'Osaka', 'Japan')[seed % 3]}</search>"
            return f"<answer>{('Paris', 'Tokyo', 'Yen')[seed % 3]}</answer>"

        yield TrainedEngine(written, digest=digest, weights=model)

    async def close(self) -> None:
        """Does nothing."""


setattr(train_grpo, "serving_for", LittleServing)  # noqa: B010
setattr(preflight, "check_embedded", lambda files: None)  # noqa: B010
setattr(policy_files, "tokenizer_of", cache(policy_files.tokenizer_of))  # noqa: B010
policy_files.tokenizer_of(policy_files.packaged_gguf())
