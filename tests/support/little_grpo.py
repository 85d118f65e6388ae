"""`branchwise train-grpo` with a policy that is trained, but writes what a script says.

A process of its own, so that a test can kill it:

    LITTLE_LOG   gets the key of every call that the engine answers, one a line
    LITTLE_SEAM  where the process dies: a `seams.Seam` as JSON
"""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from seams import Seam, plant
from trained_engine import TrainedEngine

from engines.sampling import SampleRequest, call_key, derived_seed
from pipelines import train_grpo
from pipelines.cli import main
from runs import preflight


class LittleServing:
    """Serves the weights of the moment, under their hash (see `runs.training.rollouts.Serving`)."""

    def __init__(self, *_: object) -> None:
        """Takes what `runs.training.policy_serving.serving_for` takes."""

    @asynccontextmanager
    async def serve(self, model: Any) -> AsyncIterator[TrainedEngine]:
        hashed = hashlib.sha256()
        for parameter in model.parameters():
            if parameter.requires_grad:
                hashed.update(parameter.detach().numpy().tobytes())
        digest = hashed.hexdigest()

        def written(request: SampleRequest) -> str:
            """Searches once, then answers, right or wrong by the call's key."""
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


if __name__ == "__main__":
    setattr(train_grpo, "serving_for", LittleServing)  # noqa: B010
    setattr(preflight, "check_embedded", lambda files: None)  # noqa: B010
    if "LITTLE_SEAM" in os.environ:
        plant(Seam(**json.loads(os.environ["LITTLE_SEAM"])))
    main()
