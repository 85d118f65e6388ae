"""Serves the policy in training to its own rollouts, with new weights for each batch."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from branchwise.base import Log, atomic_write_json
from branchwise.engines import (
    BeforeCall,
    Engine,
    ModelSettings,
    OpenVINOEngine,
    VllmServer,
    adapter_on,
    enter_all,
    served_name,
    server_for,
)
from branchwise.runs import Recipe, engine_for
from branchwise.training import check_has_lora
from branchwise.weights import (
    TRAINING_RECORD,
    PolicyFiles,
    policy_digest,
    policy_files,
    save_adapter,
    write_policy_gguf,
)


@dataclass(frozen=True)
class EmbeddedServing:
    """Serves a PEFT model in the embedded engine, from a file that is written for each batch.

    Attributes:
        folder: Folder of the current adapter and weights.
    """

    policy: ModelSettings
    max_batch: int
    kv_cache_gib: int
    folder: Path

    @asynccontextmanager
    async def serve(self, model: Any) -> AsyncIterator[Engine]:
        """Yields an open engine with the weights of `model`.

        The engine has the digest of a policy folder with the same adapter.
        """
        save_adapter(model, self.folder)
        start = policy_files(self.policy.trainable)
        files = PolicyFiles(
            str(self.folder), start.base, (*start.adapters, self.folder / "adapter")
        )
        gguf = self.folder / "policy.gguf"
        # Merge a copy, because unmerging an adapter leaves rounding errors in the weights.
        merged = deepcopy(model).merge_and_unload()
        write_policy_gguf(files, self.policy.precision, gguf, merged)
        del merged
        engine = OpenVINOEngine(
            gguf,
            model=str(self.folder),
            digest=policy_digest(files, self.policy.precision),
            max_batch=self.max_batch,
            kv_cache_gib=self.kv_cache_gib,
        )
        async with engine:
            yield engine

    async def close(self) -> None:
        """Removes the current weights."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class VllmServing:
    """Serves a PEFT model with vLLM: the merged start policy with the current adapter.

    Attributes:
        recipe: Recipe; its policy is the start of the training.
        folder: Folder of the current adapter. Servers of other processes must also see it.
        before_call, log: See `runs.factories.engine_for`.
    """

    recipe: Recipe
    folder: Path
    logs: Path
    before_call: BeforeCall
    log: Log
    _servers: list[VllmServer] = field(default_factory=list, init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    @asynccontextmanager
    async def serve(self, model: Any) -> AsyncIterator[Engine]:
        """Yields an open engine with the weights of `model`; the first call starts the servers.

        The engine has the digest of a policy folder with the same adapter.
        """
        policy = self.recipe.policy
        if not self._servers and not policy.addresses:
            self._servers = await self._started(policy)
        folder = self._write(model)
        served = policy.model_copy(update={"model": str(folder)})
        engine = engine_for(
            served, self.recipe.limits, self.logs, self.before_call, self.log, self._servers
        )
        try:
            async with AsyncExitStack() as stack:
                for at_one, server in zip_longest(served.at_each_server, self._servers):
                    await stack.enter_async_context(adapter_on(at_one, server))
                yield await stack.enter_async_context(engine)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _started(self, policy: ModelSettings) -> list[VllmServer]:
        """Starts the servers at once; the first one prepares the weights."""
        start = policy.model_copy(update={"model": policy.trainable})
        rank = check_has_lora(self.recipe.training).r
        servers = [
            await asyncio.to_thread(server_for, start, self.logs, None, self.log, rank, number)
            for number in range(policy.replicas)
        ]
        await enter_all(self._stack, servers)
        return servers

    def _write(self, model: Any) -> Path:
        new, start = self.folder / "new", policy_files(self.recipe.policy.trainable)
        save_adapter(model, new)
        chain = [str(adapter.resolve()) for adapter in start.adapters]
        atomic_write_json(
            new / TRAINING_RECORD, {"base": str(start.base.resolve()), "chain": chain}
        )
        name = served_name(self.recipe.policy.model_copy(update={"model": str(new)}))
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return new.rename(self.folder / name)

    async def close(self) -> None:
        """Stops the servers and removes their files."""
        await self._stack.aclose()
        shutil.rmtree(self.folder, ignore_errors=True)


def serving_for(
    recipe: Recipe, folder: Path, logs: Path, before_call: BeforeCall, log: Log
) -> EmbeddedServing | VllmServing:
    """Returns the serving of the recipe's policy during training."""
    if recipe.policy.engine == "vllm":
        return VllmServing(recipe, folder, logs, before_call, log)
    limits = recipe.limits
    return EmbeddedServing(
        recipe.policy, min(limits.max_concurrency, 64), limits.kv_cache_gib, folder
    )
