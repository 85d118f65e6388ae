"""How long does it take to serve new weights, and does the canary notice if it failed?

    python -m benchmarks.weight_sync [--precision f16 q8_0] [--updates 8]
    python -m benchmarks.weight_sync --precision f16 --updates 200 --faults

Trains with GRPO on a few short rollouts with random rewards. Before each update the embedded engine
loads the new weights, as in `train-grpo`. Prints this process's memory after every tenth update (it
must stay flat), and for each precision: seconds to write the weights, to open the engine and to run
the canary; the canary's error, in nats per token; the distance that an update moved the trainer;
and the canary's error if the engine serves wrong weights. An error above
`training.grpo.canary.TOLERANCE` stops a training.
"""

import argparse
import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from branchwise.engines.embedded.openvino import OpenVINOEngine
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.pipelines.train_grpo import policy_serving
from branchwise.pipelines.train_grpo.planned_trainings import canary_prompts
from branchwise.pipelines.train_grpo.policy_serving import EmbeddedServing
from branchwise.runs.factories import open_data
from branchwise.runs.recipe_file import load_recipe
from branchwise.training.arguments import silence_libraries
from branchwise.training.grpo.canary import TOLERANCE, Canary, CanaryResult
from branchwise.training.grpo.rollouts import PolicyCall, RolloutBatch, TrainingRollout
from branchwise.training.grpo.train import grpo_trainer
from branchwise.training.packing import StepTokens
from branchwise.training.settings import GrpoSettings, TrainingSettings
from branchwise.training.training_run import TrainingRun
from branchwise.types import Message

Adapter = dict[str, Any]


class TimedEngine(OpenVINOEngine):
    """An engine that stores the time at which it began to open."""

    began = 0.0

    async def __aenter__(self) -> "TimedEngine":
        TimedEngine.began = time.perf_counter()
        return await super().__aenter__()


def adapter_of(model: Any) -> Adapter:
    return {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" in name}


def _scale(model: Any, factor: float, part_of_name: str = "") -> None:
    for name, parameter in model.named_parameters():
        if "lora_B" in name and part_of_name in name:
            parameter.data.mul_(factor)


def _restore(model: Any, adapter: Adapter) -> None:
    for name, parameter in model.named_parameters():
        if name in adapter:
            parameter.data.copy_(adapter[name])


FAULTS: dict[str, Callable[[Any, Adapter], None]] = {
    "stale": _restore,
    "start": lambda model, before: _scale(model, 0.0),
    "alpha": lambda model, before: _scale(model, 2.0),
    "layer": lambda model, before: _scale(model, 0.0, ".layers.1."),
}
"""Wrong weights: those before the last update, no adapter, an adapter at twice the strength, and
an adapter without one layer.
"""


@dataclass
class Synced:
    """Serves the weights of each batch and draws short rollouts (a `RolloutSource`).

    Attributes:
        faults: Names of the faults to serve after the last sync.
        written, opened, checked: Seconds of each sync.
        results: Canary results of each sync.
        wrong: Canary error under each fault.
        resident_mb: Memory of this process after each sync.
    """

    serving: EmbeddedServing
    prompts: Sequence[tuple[Message, ...]]
    updates: int
    faults: Sequence[str] = ()
    written: list[float] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    checked: list[float] = field(default_factory=list)
    results: list[CanaryResult] = field(default_factory=list)
    wrong: dict[str, float] = field(default_factory=dict)
    resident_mb: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.canary = Canary(self.prompts, math.inf)
        self.before: Adapter = {}

    def collect(self, number: int, model: Any) -> RolloutBatch:
        return asyncio.run(self._collect(number, model))

    async def _collect(self, number: int, model: Any) -> RolloutBatch:
        began = time.perf_counter()
        async with self.serving.serve(model) as engine:
            self.written.append(TimedEngine.began - began)
            self.opened.append(time.perf_counter() - TimedEngine.began)
            opened = time.perf_counter()
            self.results.append(await self.canary.check(engine, model))
            self.checked.append(time.perf_counter() - opened)
            rollouts = [await self._rollout(engine, number, draw) for draw in range(4)]
        if number == self.updates:
            for fault in self.faults:
                self.wrong[fault] = await self._error_with(model, fault)
        self.before = adapter_of(model)
        self.resident_mb.append(resident_mb())
        if number % 10 == 0:
            print(f"{number} updates: {self.resident_mb[-1]:,.0f} MB", flush=True)
        return RolloutBatch([rollouts])

    async def _rollout(self, engine: Any, number: int, draw: int) -> TrainingRollout:
        request = SampleRequest(
            self.prompts[0],
            Sampling(temperature=1.0, top_p=1.0, max_new_tokens=16),
            CallIdentity("policy", "q", str(number), draw),
            tokens=True,
        )
        completion = await engine.sample(request)
        call = PolicyCall(
            StepTokens(completion.prompt_ids, completion.token_ids), completion.logprobs
        )
        return TrainingRollout("q", (call,), float(draw % 2))

    async def _error_with(self, model: Any, fault: str) -> float:
        served = deepcopy(model)
        FAULTS[fault](served, self.before)
        async with self.serving.serve(served) as engine:
            return (await Canary(self.prompts, math.inf).check(engine, model)).error


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(policy: ModelSettings, source: Synced, lr: float) -> None:
    """Trains and discards the policy."""
    from transformers import PrinterCallback

    setattr(policy_serving, "OpenVINOEngine", TimedEngine)  # noqa: B010
    settings = GrpoSettings(
        lr=lr,
        batches=source.updates + 1,  # the last update is not served
        batch_questions=1,
        group_size=4,
        save_every=10**6,
    )
    training = TrainingSettings(grpo=settings, precision="float32")
    with tempfile.TemporaryDirectory() as target:
        training_run = TrainingRun("grpo", training, policy.model, Path(target), 0)
        trainer = grpo_trainer(training_run, source, 1.0)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def report(precision: str, source: Synced) -> None:
    errors = [result.error for result in source.results]
    moved = [result.moved for result in source.results if result.moved is not None]
    wrong = (f"{source.wrong[name]:.4f}" if name in source.wrong else "" for name in FAULTS)
    print(
        f"| {precision} | {fmean(source.written):.1f} | {fmean(source.opened):.1f} | "
        f"{fmean(source.checked):.1f} | "
        f"{fmean(errors):.4f} | {max(errors):.4f} | {TOLERANCE[precision]} | "
        f"{fmean(moved) if moved else 0:.4f} | {' | '.join(wrong)} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", type=Path, default=Path("configs/atlas.yaml"))
    parser.add_argument("--set", nargs="+", default=[], dest="overrides")
    parser.add_argument("--precision", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    options = parser.parse_args()
    silence_libraries()
    recipe = load_recipe(options.config, options.overrides)
    prompts = canary_prompts(recipe, open_data(recipe).questions)
    sources = {}
    for precision in options.precision:
        policy = recipe.policy.model_copy(update={"precision": precision})
        with tempfile.TemporaryDirectory() as folder:
            serving = EmbeddedServing(policy, 8, 1, Path(folder) / "serving")
            sources[precision] = Synced(serving, prompts, options.updates, options.faults)
            run(policy, sources[precision], options.lr)
    print(
        "\n| precision | write s | open s | canary s | mean error | largest | tolerance | moved "
        f"| {' | '.join(FAULTS)} |\n|{'---|' * (8 + len(FAULTS))}"
    )
    for precision, source in sources.items():
        report(precision, source)


if __name__ == "__main__":
    main()
