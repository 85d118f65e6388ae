"""How full is the embedded engine's batch while `train-grpo` draws its rollouts?

    python -m benchmarks.rollout_fill --config configs/eval-rar.yaml [--batches 2]

Draws batches as `train-grpo` does, with the policy that training would start from, and counts the
generations in the engine's batch every 50 ms. The tail begins when fewer trajectories are
unfinished than the batch has places; before it, at least 90 % of the places should be taken. A
trajectory takes no place while it searches or reads a reply, so more trajectories are in progress
than the batch holds.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from branchwise.engines.embedded.openvino import OpenVINOEngine
from branchwise.engines.sampling import Engine
from branchwise.pipelines.train_grpo.generated_rollouts import Rollouts, ScoredRollout
from branchwise.pipelines.train_grpo.planned_trainings import rollout_recipe
from branchwise.runs.factories import engine_for, open_data
from branchwise.runs.prepared import Prepared
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import Gate, StageContext
from branchwise.storage.ledger import Ledger
from branchwise.training.grpo.canary import Canary, CanaryResult


@dataclass
class Watch:
    """Samples an engine's load from a thread, because the event loop may be busy.

    Attributes:
        unfinished: Number of trajectories that have not ended.
        samples: Unfinished trajectories and generations in the engine's batch, per sample.
    """

    engine: OpenVINOEngine
    unfinished: int
    samples: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.samples.append((self.unfinished, self.engine.in_flight))

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def fill(self, places: int) -> tuple[float, float, float]:
        """Returns the share of places taken before the tail and overall, and the tail's start.

        The start is a share of the time.
        """
        shares = [running / places for _, running in self.samples]
        before = [running / places for unfinished, running in self.samples if unfinished >= places]
        return fmean(before or [0.0]), fmean(shares or [0.0]), len(before) / max(len(shares), 1)


class Content(Canary):
    """Checks nothing, because the weights do not change."""

    async def check(self, engine: Engine, model: Any) -> CanaryResult:
        return CanaryResult(0.0, None)


@dataclass(frozen=True)
class Open:
    """Serves an open engine."""

    engine: Engine

    @asynccontextmanager
    async def serve(self, model: Any) -> AsyncIterator[Engine]:
        async with self.engine:
            yield self.engine

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Counted(Rollouts):
    """Reports ended rollouts to a `Watch`."""

    watch: list[Watch] = field(default_factory=list)

    async def _rollout(self, *arguments: Any, **options: Any) -> ScoredRollout | None:
        if not self.watch:
            settings = self.recipe.training.grpo
            engine = self.serving.engine  # type: ignore[attr-defined]
            self.watch.append(Watch(engine, settings.batch_questions * settings.group_size))
        try:
            return await super()._rollout(*arguments, **options)
        finally:
            self.watch[-1].unfinished -= 1


def draw(recipe: Recipe, number: int) -> tuple[Watch, float]:
    """Draws a batch and returns the watch and the seconds it took."""
    with tempfile.TemporaryDirectory() as name:
        call = StageContext(recipe, Path(name))
        recipe = rollout_recipe(call)
        data = open_data(recipe)
        prepared = Prepared(call, recipe, data, {"policy": recipe.policy})
        with Ledger(Path(name) / "ledger.sqlite") as ledger:
            gate = Gate(recipe.limits, ledger.totals)
            serving = Open(engine_for(recipe.policy, recipe.limits))
            source = Counted(
                prepared,
                recipe,
                data.questions,
                (),
                ledger,
                gate,
                serving,
                Content((), 0.0),
            )
            with source:
                batch = source.collect(number, None)
        source.watch[-1].stop()
        return source.watch[-1], batch.metrics.sample_s or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", type=Path, default=Path("configs/eval-rar.yaml"))
    parser.add_argument("--set", nargs="+", default=[], dest="overrides")
    parser.add_argument("--batches", type=int, default=2)
    options = parser.parse_args()
    recipe = load_recipe(options.config, options.overrides)
    places = min(recipe.limits.max_concurrency, 64)
    print("| batch | places | before the tail | in all | time before the tail | seconds |")
    print("|---|---|---|---|---|---|")
    for number in range(options.batches):
        began = time.monotonic()
        watch, seconds = draw(recipe, number)
        before, overall, share = watch.fill(places)
        print(
            f"| {number} | {places} | {100 * before:.0f} % | {100 * overall:.0f} % | "
            f"{100 * share:.0f} % | {seconds:.0f} of {time.monotonic() - began:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
