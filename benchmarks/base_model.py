"""What does a base model cost on this machine: calls, training and memory?

    python -m benchmarks.base_model MODEL [--requests 32] [--examples 16] [--precision f16 q8_0]

MODEL is a value of `policy.model`: "packaged", a GGUF file, a folder or hub:owner/name. Calls are
the requests of `benchmarks.engine_throughput` (380 tokens of the packaged model, 250 of them
shared; 32 new ones), all in flight at once. Training is one supervised epoch over the same prompts,
in packed batches of 8, with the default LoRA; loading is not timed. A token that examples share is
counted once, because it is computed once. Every figure comes from a process of its own, which gives
its peak resident memory.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engine_throughput import prompt, request, timed
from branchwise.engines.embedded.openvino import embedded_engine
from branchwise.engines.settings import PRECISIONS, ModelSettings
from branchwise.training.arguments import silence_libraries
from branchwise.training.curves import read_metrics
from branchwise.training.examples import StepExample
from branchwise.training.settings import TrainingSettings
from branchwise.training.sft import train_on_steps
from branchwise.training.training_run import TrainingRun
from branchwise.weights.policies import load_policy, policy_files

TRAIN, LOAD = "train", "load"


async def calls(model: str, precision: Any, requests: int) -> dict[str, float]:
    """Returns the calls per second and the input tokens per call of the embedded engine."""
    async with embedded_engine(ModelSettings(model=model, precision=precision)) as engine:
        await engine.sample(request(prompt(-1, shared=True), -1, 1))  # as in the middle of a run
        samples = [request(prompt(i, shared=True), i, 32) for i in range(requests)]
        seconds, tokens, _ = await timed(engine, samples)
    return {"calls/s": requests / seconds, "tokens/call": tokens / requests}


def train(model: str, examples: int) -> dict[str, float]:
    """Returns the examples and the computed tokens per second of a supervised training."""
    steps = [
        StepExample(prompt(i, shared=True), f"The city is number {i}, by its river.", "q", "any")
        for i in range(examples)
    ]
    with tempfile.TemporaryDirectory() as name:
        target = Path(name, "trained")
        report = train_on_steps(TrainingRun("sft", TrainingSettings(), model, target, 0), steps)
        tokens = read_metrics(target)[-1]["tokens"]
    return {"examples/s": examples / report.seconds, "tokens/s": tokens / report.seconds}


def load(model: str) -> dict[str, float]:
    """Returns the number of weights, in millions."""
    weights = load_policy(policy_files(model))[0].parameters()
    return {"M weights": sum(tensor.numel() for tensor in weights) / 1e6}


def measure(model: str, part: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the figures of one part: a precision, `TRAIN` or `LOAD`."""
    if part == TRAIN:
        figures = train(model, options.examples)
    elif part == LOAD:
        figures = load(model)
    else:
        figures = asyncio.run(calls(model, part, options.requests))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return figures | {"peak GB": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    silence_libraries()
    if options.part:
        print(json.dumps(measure(options.model, options.part, options)))
        return
    for precision in options.precision:  # rewrites the weights, once
        embedded_engine(ModelSettings(model=options.model, precision=precision))
    for part in (LOAD, *options.precision, TRAIN):
        command = [sys.executable, "-m", "benchmarks.base_model", *sys.argv[1:], "--part", part]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures = json.loads(lines.splitlines()[-1])
        print(f"{part:6}", ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
