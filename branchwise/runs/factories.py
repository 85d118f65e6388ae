"""Builds the parts of a run from its recipe: data, retriever, engines, environment."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from branchwise.agent import Environment, protocol_of
from branchwise.base import ConfigError, Log, StorageError
from branchwise.engines import (
    BeforeCall,
    Capabilities,
    Engine,
    LedgeredEngine,
    ModelSettings,
    NoCallEngine,
    RereadingEngine,
    Sampling,
    VllmServer,
)
from branchwise.retrieval import Retriever
from branchwise.sources import Data, DataSettings, load_data
from branchwise.storage import Ledger, cache_section
from branchwise.types import Passage

from .recipe import Recipe

WARM_START = "warm-start"
"""Name of the folder that `make warm-start` writes below `models/<run>`."""


def open_data(recipe: Recipe, settings: DataSettings | None = None) -> Data:
    """Returns questions and corpus of the recipe, checked; `settings` replaces its `data:` block.

    Questions that the protocol cannot take are left out and counted.
    """
    unfit = protocol_of(recipe.agent).unfit
    return load_data(settings or recipe.data, recipe.seed, unfit=unfit)


def open_index(recipe: Recipe, passages: tuple[Passage, ...], log: Log | None = None) -> Retriever:
    """Returns the recipe's retriever; builds its index the first time.

    `log` gets a message if the index was damaged and is rebuilt.
    """
    from branchwise.retrieval import open_retriever

    return open_retriever(recipe.retrieval, list(passages), log=log)


def engine_for(
    model: ModelSettings,
    recipe: Recipe,
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

        limits = recipe.limits
        return embedded_engine(
            model,
            max_batch=min(limits.max_concurrency, 64),
            kv_cache_gib=limits.kv_cache_gib,
            log=log,
        )
    from branchwise.engines import OpenAIEngine

    connect = partial(
        OpenAIEngine,
        max_concurrency=recipe.limits.max_concurrency,
        timeout_s=recipe.limits.timeout_s,
        deadline_s=recipe.limits.deadline_s,
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
    recipe: Recipe,
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
    engine = engine_for(model, recipe, ledger.path.parent / "logs", before_call, log)
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


def environment_for(recipe: Recipe, engine: Engine, retriever: Retriever) -> Environment:
    """Returns an environment with the recipe's protocol and retrieval."""
    return Environment(
        protocol=protocol_of(recipe.agent),
        engine=engine,
        retriever=retriever,
        top_k=recipe.retrieval.top_k,
        seed=recipe.seed,
    )


def sampling_for(model: ModelSettings, temperature: float | None = None) -> Sampling:
    """Returns the sampling settings of a model; `temperature` overrides the model's own."""
    return Sampling(
        temperature=model.temperature if temperature is None else temperature,
        top_p=model.top_p,
        max_new_tokens=model.max_new_tokens,
    )


def model_folder(run: Path, stage: str) -> Path:
    """Returns the model folder of a stage: `models/<run>/<stage>`."""
    return Path("models") / run.name / stage
