"""Opens the data of a recipe and the engines of its models."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from branchwise.agent import protocol_of
from branchwise.base import ConfigError, Log, StorageError
from branchwise.engines import (
    BeforeCall,
    Capabilities,
    Engine,
    LedgeredEngine,
    ModelSettings,
    NoCallEngine,
    RereadingEngine,
    VllmServer,
)
from branchwise.sources import Data, load_data
from branchwise.storage import Ledger, cache_section

from .recipe import LimitSettings, Recipe

WARM_START = "warm-start"
"""Name of the folder that `make warm-start` writes below `models/<run>`."""


def open_data(recipe: Recipe) -> Data:
    """Returns questions and corpus of the recipe, checked.

    Questions that the protocol cannot take are left out and counted.
    """
    return load_data(recipe.data, recipe.seed, unfit=protocol_of(recipe.agent).unfit)


def engine_for(
    model: ModelSettings,
    limits: LimitSettings,
    logs: Path | None = None,
    before_call: BeforeCall | None = None,
    log: Log | None = None,
    server: VllmServer | None = None,
) -> Engine:
    """Returns the engine of a `policy:` or `judge:` block; enter it before use.

    Args:
        logs: Folder for the log of a server that the engine starts; defaults to the cache's.
        before_call: Called before every attempt at an endpoint (see `engines.ledgered`).
    """
    if model.engine == "openvino":
        from branchwise.engines import embedded_engine

        return embedded_engine(
            model,
            max_batch=min(limits.max_concurrency, 64),
            kv_cache_gib=limits.kv_cache_gib,
            log=log,
        )
    from branchwise.engines import OpenAIEngine

    connect = partial(
        OpenAIEngine,
        max_concurrency=limits.max_concurrency,
        timeout_s=limits.timeout_s,
        deadline_s=limits.deadline_s,
        before_attempt=before_call,
        on_event=log,
    )
    if model.engine == "vllm":
        from branchwise.engines import VllmEngine

        return VllmEngine(model, connect, logs or cache_section("logs"), log, server)
    return connect(model)


@asynccontextmanager
async def open_engine(
    model: ModelSettings,
    limits: LimitSettings,
    ledger: Ledger,
    before_call: BeforeCall | None = None,
    log: Log | None = None,
    reread: tuple[Ledger, str] | None = None,
) -> AsyncIterator[LedgeredEngine]:
    """Yields a started and checked engine that records its calls (see `engine_for`).

    Args:
        reread: Ledger of an earlier run whose replies are read again, and the model's digest there.

    Raises:
        ConfigError: If the detected form of constraints is not that of the run's earlier calls.
    """
    engine = engine_for(model, limits, ledger.path.parent / "logs", before_call, log)
    if reread is not None:
        engine = RereadingEngine(engine, *reread)
    price = model.price_per_million
    async with LedgeredEngine(engine, ledger, price, before_call=before_call) as ledgered:
        _note_capabilities(model, ledgered, ledger)
        yield ledgered


def replaying_engine(model: ModelSettings, digest: str, ledger: Ledger) -> LedgeredEngine:
    """Returns an engine that only replays a model's stored calls, so that it needs no model.

    Raises:
        StorageError: If the ledger does not know the engine.
    """
    capabilities = ledger.engine_capabilities(digest)
    if capabilities is None:
        raise StorageError(
            f"{ledger.path}: engine {digest} ({model.model}) is missing, so this ledger is from "
            "another run. Restore the right one, or run without --replay"
        )
    return LedgeredEngine(
        NoCallEngine(model.model, digest, Capabilities(**json.loads(capabilities))), ledger
    )


def _note_capabilities(model: ModelSettings, engine: Engine, ledger: Ledger) -> None:
    """Stores an engine's capabilities when a run first uses it, and compares detected ones.

    They decide the form of a request, which is part of its key. In another form, stored calls would
    be repeated and paid, and the rows would mix both.
    """
    stored = ledger.engine_capabilities(engine.digest)
    if stored is None:
        ledger.note_engine(engine.digest, json.dumps(asdict(engine.capabilities)))
        return
    before = Capabilities(**json.loads(stored))
    if before != engine.capabilities and model.structured_output == "auto":
        raise ConfigError(
            f"{model.model}: its endpoint now takes {_form(engine.capabilities)}, but took "
            f"{_form(before)} in this run's calls. Restore the server, or set structured_output of "
            "this model explicitly"
        )


def _form(capabilities: Capabilities) -> str:
    if capabilities.structured_output:
        return "constraints by regular expressions"
    return "constraints by JSON schemas" if capabilities.json_schema else "no constraints"


def model_folder(run: Path, stage: str) -> Path:
    """Returns the model folder of a stage: `models/<run>/<stage>`."""
    return Path("models") / run.name / stage
