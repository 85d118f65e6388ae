"""Opens the data of a recipe and the engines of its models."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path

from branchwise.agent import protocol_of
from branchwise.base import ConfigError, Log, StorageError, atomic_write_json
from branchwise.engines import (
    BeforeCall,
    Capabilities,
    Engine,
    FleetEngine,
    LedgeredEngine,
    ModelSettings,
    NoCallEngine,
    RereadingEngine,
    ServerEngine,
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
    servers: Sequence[VllmServer] = (),
) -> Engine:
    """Returns the engine of a `policy:` or `judge:` block; enter it before use.

    Args:
        logs: Folder for the log of a server that the engine starts; defaults to the cache's.
        before_call: Called before every attempt at an endpoint (see `engines.ledgered`).
        servers: Servers of the model that this process runs already.
    """
    if model.engine == "openvino":
        from branchwise.engines import embedded_engine

        return embedded_engine(
            model,
            max_batch=min(limits.max_concurrency, 64),
            kv_cache_gib=limits.kv_cache_gib,
            log=log,
        )
    from branchwise.engines import OpenAIEngine, RetryPolicy, VllmEngine

    models = model.at_each_server
    is_fleet = len(models) > 1
    connect = partial(
        OpenAIEngine,
        max_concurrency=limits.max_concurrency,
        timeout_s=limits.timeout_s,
        deadline_s=limits.deadline_s,
        retry=RetryPolicy(gives_way=is_fleet),
        before_attempt=before_call,
        on_event=log,
    )
    engines: dict[str, ServerEngine] = {}
    for number, (at_one, server) in enumerate(zip_longest(models, servers)):
        name = at_one.base_url or f"replica {number}"
        engines[name] = (
            VllmEngine(
                at_one,
                connect,
                logs or cache_section("logs"),
                log,
                server,
                replica=number,
                gives_way=is_fleet,
            )
            if model.engine == "vllm"
            else connect(at_one)
        )
    return FleetEngine(engines, log, before_call) if is_fleet else next(iter(engines.values()))


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
    logs = ledger.path.parent / "logs"
    engine = at_servers = engine_for(model, limits, logs, before_call, log)
    if reread is not None:
        engine = RereadingEngine(engine, *reread)
    price = model.price_per_million
    async with LedgeredEngine(engine, ledger, price, before_call=before_call) as ledgered:
        _note_capabilities(model, ledgered, ledger)
        try:
            yield ledgered
        finally:
            if isinstance(at_servers, FleetEngine):
                atomic_write_json(logs / f"servers-{engine.digest}.json", at_servers.describe())


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
