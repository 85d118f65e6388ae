"""The policy in training, served to its own rollouts: new weights for each batch."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.openvino import OpenVINOEngine
from engines.sampling import Engine
from engines.settings import ModelSettings
from runs.recipe import Recipe
from storage.errors import ConfigError
from weights.adapter_chain import save_adapter
from weights.policy_files import PolicyFiles, policy_digest, policy_files
from weights.policy_gguf import write_policy_gguf


@dataclass(frozen=True)
class EmbeddedServing:
    """Serves a PEFT model in the embedded engine, from a file that is written for each batch.

    Attributes:
        policy: The recipe's, whose `model` is the start of the training.
        max_batch: Most generations at once.
        cache_gib: Memory of the key-value cache.
        folder: For adapter and weights of the moment.
    """

    policy: ModelSettings
    max_batch: int
    cache_gib: int
    folder: Path

    @asynccontextmanager
    async def serving(self, model: Any) -> AsyncIterator[Engine]:
        """Gives an open engine with the weights of `model`.

        Its digest is that of a policy folder with the same adapter.
        """
        save_adapter(model, self.folder)
        start = policy_files(self.policy.model)
        files = PolicyFiles(
            str(self.folder), start.base, (*start.adapters, self.folder / "adapter")
        )
        gguf = self.folder / "policy.gguf"
        # A copy, because taking an adapter out of the weights again leaves its rounding in them.
        merged = deepcopy(model).merge_and_unload()
        write_policy_gguf(files, self.policy.precision, gguf, merged)
        del merged
        engine = OpenVINOEngine(
            gguf,
            model=str(self.folder),
            digest=policy_digest(files, self.policy.precision),
            precision=self.policy.precision,
            max_batch=self.max_batch,
            cache_gib=self.cache_gib,
        )
        async with engine:
            yield engine

    def close(self) -> None:
        """Removes the weights of the moment."""
        shutil.rmtree(self.folder, ignore_errors=True)


def serving_for(recipe: Recipe, folder: Path) -> EmbeddedServing:
    """Returns what serves the recipe's policy while it is trained.

    Raises:
        ConfigError: If its engine cannot be given new weights.
    """
    if recipe.policy.engine != "openvino":
        raise ConfigError(
            f"policy.engine: {recipe.policy.engine} cannot be given the weights of a policy in "
            "training. Use engine: openvino"
        )
    limits = recipe.limits
    return EmbeddedServing(recipe.policy, min(limits.max_concurrency, 64), limits.cache_gib, folder)
