"""The door of a stage: what it works with, read and checked before it writes or pays for anything.

A stage hands `Prepared` on, so that nothing below it reads the recipe's files or models again.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property

from branchwise.agent import AgentProtocol, Environment, protocol_of
from branchwise.base import ConfigError
from branchwise.engines import Engine, LedgeredEngine, ModelSettings, model_digest
from branchwise.retrieval import Retriever, open_retriever
from branchwise.rewards import RewardScheme
from branchwise.sources import Data
from branchwise.storage import Ledger

from .factories import open_data, open_engine
from .folder import check_run_folder
from .preflight import failed_checks, model_files
from .recipe import Recipe
from .stage import Gate, StageContext


@dataclass(frozen=True)
class Prepared:
    """What a stage works with.

    Attributes:
        recipe: All settings, with `--limit` applied.
        data: Questions and corpus.
        models: Settings of the models that the stage calls, by role or setting.
        replayed: Digests of the models by role, if their stored calls are replayed without them.
    """

    context: StageContext
    recipe: Recipe
    data: Data
    models: Mapping[str, ModelSettings]
    replayed: Mapping[str, str] | None = None

    @cached_property
    def protocol(self) -> AgentProtocol:
        """The protocol of the recipe's own policy."""
        return protocol_of(self.recipe.agent)

    @cached_property
    def scheme(self) -> RewardScheme:
        """The reward scheme, without a verifier."""
        return self.recipe.scheme

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Digests of the models, by role; hashes their files."""
        if self.replayed is not None:
            return self.replayed
        return {role: model_digest(model) for role, model in self.models.items()}

    @cached_property
    def retriever(self) -> Retriever:
        """The index of the corpus; built the first time that any stage needs it."""
        passages = list(self.data.passages)
        return open_retriever(self.recipe.retrieval, passages, log=self.context.log)

    def environment(self, engine: Engine, protocol: AgentProtocol | None = None) -> Environment:
        """Returns an environment of the recipe's retrieval; `protocol` replaces the recipe's."""
        return Environment(
            protocol=protocol or self.protocol,
            engine=engine,
            retriever=self.retriever,
            top_k=self.recipe.retrieval.top_k,
            seed=self.recipe.seed,
        )

    def gate(self, ledger: Ledger) -> Gate:
        """Returns a gate with the recipe's limits, which counts what the run has spent."""
        return Gate(self.recipe.limits, ledger.totals, self.context.log)

    def open_engine(
        self,
        model: ModelSettings,
        ledger: Ledger,
        gate: Gate,
        reread: tuple[Ledger, str] | None = None,
    ) -> AbstractAsyncContextManager[LedgeredEngine]:
        """Returns an engine whose calls pass the gate and are recorded, for an `async with` block.

        Args:
            reread: See `factories.open_engine`.
        """
        limits, log = self.recipe.limits, self.context.log
        return open_engine(model, limits, ledger, gate.check, log, reread)


def prepare(
    context: StageContext,
    models: Mapping[str, ModelSettings],
    *,
    recipe: Recipe | None = None,
    data: Data | None = None,
    replayed: Mapping[str, str] | None = None,
    mixes_rows: bool = True,
) -> Prepared:
    """Reads the data, and checks run folder and model files; needs no endpoint.

    Args:
        context: Call of the stage.
        models: Models that the stage calls, by role or setting.
        recipe: Recipe of the stage; defaults to the context's, with `--limit` applied.
        data: Questions and corpus; defaults to those of the recipe's `data:`.
        replayed: Digests of the models by role, if they are not needed.
        mixes_rows: Whether the run may have been started with other settings.

    Raises:
        ConfigError: If something is missing, damaged or does not fit the run.
    """
    recipe = recipe or context.limited_recipe
    data = open_data(recipe) if data is None else data
    # Before the run folder has a recipe in it, which the fixed command would not be let change.
    check_run_folder(context.run, None if mixes_rows else recipe)
    if replayed is None:
        files = (check for role, model in models.items() for check in model_files(role, model))
        if problems := list(failed_checks(files)):
            raise ConfigError("\n".join(problems))
    return Prepared(context, recipe, data, models, replayed)
