"""How many optimiser steps per second does `train-grpo` make, compared with stock TRL?

    python -m benchmarks.grpo_steps [--shape arena eval-rar] [--beta 0 0.04] [--rounds 1]
    python -m benchmarks.grpo_steps --run datasets/eval-rar --batch 0

Both train the same LoRA in float32 on the same rollouts, with one update per batch of 10 questions
and 8 rollouts each. TRL's `GRPOTrainer` receives one row per rollout through its `rollout_func`:
the prompt and the whole turn, with a mask over environment text. So the protocol must only append.
The rollouts come from a run's ledger, or are random tokens with the recipes' lengths on atlas
(`SHAPES`). Rewards are random, so that every group has spread: TRL also computes groups without
spread, but we skip them. Each training runs in its own process, one after the other; the fastest
step counts. Prints steps per second, tokens through the layers per step, peak memory, and the
relative distance of the first step's gradients.
"""

import argparse
import random
import resource
import sqlite3
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.packed_training import counting
from branchwise.storage.ledger_rows import unpacked
from branchwise.training.arguments import (
    check_has_lora,
    lora_config,
    silence_libraries,
    trainer_arguments,
)
from branchwise.training.grpo.rollouts import PolicyCall, RolloutBatch, TrainingRollout
from branchwise.training.grpo.train import grpo_trainer
from branchwise.training.packing import StepTokens
from branchwise.training.settings import GrpoSettings, TrainingSettings
from branchwise.training.training_run import TrainingRun
from branchwise.weights.policies import load_policy, policy_files

Groups = Sequence[Sequence[TrainingRollout]]


@dataclass(frozen=True)
class Shape:
    """Mean lengths of a protocol's rollouts, in tokens; drawn uniformly within a third of the mean.

    Attributes:
        prompt: Tokens of the first prompt, which a group shares.
        calls: Fewest and most policy calls.
        sampled: Tokens sampled per call.
        inserted: Tokens of environment text between two calls.
    """

    prompt: int
    calls: tuple[int, int]
    sampled: int
    inserted: int


SHAPES = {
    "arena": Shape(prompt=430, calls=(1, 1), sampled=61, inserted=0),
    "eval-rar": Shape(prompt=200, calls=(3, 5), sampled=35, inserted=110),
}


@dataclass
class Measured:
    """One training.

    Attributes:
        seconds: Seconds of each step.
        learned, read: Tokens through the layers with a gradient, and without.
        peak_gb: Peak resident memory of the process, in GB.
        loss: Loss of the first step.
        gradient: Gradient of the first step, all adapter entries in one array.
    """

    seconds: list[float] = field(default_factory=list)
    learned: int = 0
    read: int = 0
    peak_gb: float = 0.0
    loss: float = 0.0
    gradient: Any = None


def random_rollouts(
    shape: Shape, questions: int, size: int, seed: int = 0
) -> list[list[TrainingRollout]]:
    """Returns groups of `size` rollouts of random tokens."""
    rng = random.Random(seed)

    def words(mean: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(1000, 40_000), k=rng.randint(mean * 2 // 3, mean * 4 // 3)))

    def rollout(question: str, prompt: tuple[int, ...]) -> TrainingRollout:
        calls = []
        for _ in range(rng.randint(*shape.calls)):
            calls.append(PolicyCall(StepTokens(prompt, words(shape.sampled))))
            prompt = (*prompt, *calls[-1].tokens.step, *words(shape.inserted))
        return TrainingRollout(question, tuple(calls), rng.random())

    groups = []
    for number in range(questions):
        prompt = words(shape.prompt)
        groups.append([rollout(str(number), prompt) for _ in range(size)])
    return groups


def stored_rollouts(ledger: Path, batch: int, size: int) -> list[list[TrainingRollout]]:
    """Returns the groups of `size` rollouts that `train-grpo` drew for a batch.

    Skips groups that lost a rollout, because TRL's groups have a fixed size.
    """
    groups: dict[Any, dict[int, list[PolicyCall]]] = defaultdict(lambda: defaultdict(list))
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT question_id, path, draw, prompt_ids, token_ids FROM calls WHERE error IS NULL "
            "AND path LIKE ? AND length(token_ids) > 0 ORDER BY length(prompt_ids)",
            (f"grpo/{batch}/%",),
        )
        for question, path, draw, prompt, step in rows:
            tokens = StepTokens(unpacked("i", prompt) or (), unpacked("i", step) or ())
            groups[question, path.split("+")[0]][draw].append(PolicyCall(tokens))
    rng = random.Random(batch)
    return [
        [TrainingRollout(question, tuple(calls), rng.random()) for calls in draws.values()]
        for (question, _), draws in groups.items()
        if len(draws) == size
    ]


def turn_of(rollout: TrainingRollout) -> tuple[list[int], list[int], list[int]]:
    """Returns a rollout as TRL's row: prompt, completion, and the mask of the policy's tokens.

    Raises:
        ValueError: If a call's prompt does not continue from the call before.
    """
    prompt = rollout.calls[0].tokens.prompt
    sequence, mask = prompt, [0] * len(prompt)
    for tokens in (call.tokens for call in rollout.calls):
        if tokens.prompt[: len(sequence)] != sequence:
            raise ValueError(f"{rollout.question_id}: the protocol rewrites its prompts")
        sequence = tokens.whole
        mask += [0] * (len(sequence) - len(mask) - len(tokens.step)) + [1] * len(tokens.step)
    return list(prompt), list(sequence[len(prompt) :]), mask[len(prompt) :]


@dataclass(frozen=True)
class Stored:
    """Returns the same rollouts for each batch (see `training.grpo.rollouts.RolloutSource`)."""

    groups: Groups

    def collect(self, number: int, model: Any) -> RolloutBatch:
        return RolloutBatch(self.groups)


def our_trainer(start: str, groups: Groups, training: TrainingSettings, folder: Path) -> Any:
    return grpo_trainer(TrainingRun("grpo", training, start, folder, 0), Stored(groups), 1.0)


def trl_trainer(
    start: str, groups: Groups, training: TrainingSettings, folder: Path, micro_batch: int
) -> Any:
    """Returns TRL's trainer with the same settings."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = load_policy(policy_files(start))
    settings, rollouts, size = training.grpo, sum(map(len, groups)), len(groups[0])

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, Any]:
        # Each prompt comes once for each rollout of its group.
        waiting = {str(number): iter(group) for number, group in enumerate(groups)}
        batch = [next(waiting[prompt]) for prompt in prompts]
        prompt_ids, completion_ids, masks = zip(*map(turn_of, batch), strict=True)
        return {
            "prompt_ids": list(prompt_ids),
            "completion_ids": list(completion_ids),
            "env_mask": list(masks),
            "logprobs": None,
            "paid": [rollout.reward for rollout in batch],
        }

    return GRPOTrainer(
        model=model,
        reward_funcs=[lambda completions, paid, **_: paid],
        rollout_func=roll_out,
        args=GRPOConfig(
            **{
                **trainer_arguments(training, "grpo", folder, 0),
                "max_steps": settings.batches,
                "per_device_train_batch_size": micro_batch,
                "gradient_accumulation_steps": rollouts // micro_batch,
                "num_generations": size,
                "loss_type": "grpo",
                "epsilon": settings.clip,
                "beta": settings.beta,
                "temperature": 1.0,
                "use_bias_correction_kl": False,
            }
        ),
        train_dataset=Dataset.from_list([{"prompt": str(n)} for n in range(len(groups))]),
        processing_class=tokenizer,
        peft_config=lora_config(check_has_lora(training)),
    )


def train_once(
    start: str, groups: Groups, training: TrainingSettings, micro_batch: int, threads: int
) -> Measured:
    """Trains a new adapter on `start` and discards it; loading is not timed.

    Args:
        micro_batch: Rollouts per forward pass of TRL; 0 uses our trainer.
    """
    import torch
    from transformers import PrinterCallback, TrainerCallback

    silence_libraries()
    torch.set_num_threads(threads)
    measured = Measured()

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **arguments: Any) -> None:
            self.began = time.perf_counter()

        def on_pre_optimizer_step(self, *_: Any, model: Any, **arguments: Any) -> None:
            if measured.gradient is None:
                gradients = [p.grad.flatten() for _, p in trained_parameters(model)]
                measured.gradient = torch.cat(gradients).numpy().copy()

        def on_step_end(self, *_: Any, **arguments: Any) -> None:
            measured.seconds.append(time.perf_counter() - self.began)

    with tempfile.TemporaryDirectory() as name:
        make: Any = (our_trainer, trl_trainer)[bool(micro_batch)]
        more = (micro_batch,) * bool(micro_batch)
        trainer = make(start, groups, training, Path(name), *more)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Watch())
        move(trainer.model)
        trainer.model.get_input_embeddings().register_forward_hook(counting(measured))
        trainer.train()
        measured.loss = next(line["loss"] for line in trainer.state.log_history if "loss" in line)
    measured.peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return measured


def trained_parameters(model: Any) -> list[tuple[str, Any]]:
    return sorted((name, p) for name, p in model.named_parameters() if p.requires_grad)


def move(model: Any) -> None:
    """Sets the adapter to the same random weights in each trainer."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in trained_parameters(model):
            parameter.normal_(std=0.005 if "lora_B" in name else 0.02)


def distance(gradient: Any, reference: Any) -> float:
    """Returns the norm of the difference of two gradients, relative to the second."""
    return float(((gradient - reference) ** 2).sum() ** 0.5 / (reference**2).sum() ** 0.5)


def compare(groups: Groups, options: argparse.Namespace, beta: float) -> dict[str, list[Measured]]:
    """Trains with both, one after the other."""
    settings = GrpoSettings(
        batches=options.steps + 1,  # the first one warms up
        batch_questions=len(groups),
        group_size=len(groups[0]),
        beta=beta,
        max_length=4096,
        max_tokens=None,
        micro_tokens=options.micro_tokens,
        save_every=10**6,
    )
    training = TrainingSettings(grpo=settings, precision="float32")
    runs_by_trainer: dict[str, list[Measured]] = {"TRL": [], "ours": []}
    for _ in range(options.rounds):
        for name, runs in runs_by_trainer.items():
            micro_batch = options.micro_batch if name == "TRL" else 0
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # memory of its own
                arguments = (options.start, groups, training, micro_batch, options.threads)
                runs.append(pool.submit(train_once, *arguments).result())
    return runs_by_trainer


def report(shape: str, beta: float, steps: int, runs_by_trainer: dict[str, list[Measured]]) -> None:
    fastest = {
        name: min(second for run in runs for second in run.seconds[1:])
        for name, runs in runs_by_trainer.items()
    }
    for name, runs in runs_by_trainer.items():
        print(
            f"| {shape} | {beta} | {name} | {1 / fastest[name]:.4f} | {fastest[name]:.1f} | "
            f"{runs[0].learned // steps:,} | {runs[0].read // steps:,} | "
            f"{max(run.peak_gb for run in runs):.1f} |"
        )
    ours, trl = runs_by_trainer["ours"][0], runs_by_trainer["TRL"][0]
    print(
        f"|  |  | factor | {fastest['TRL'] / fastest['ours']:.2f} | gradients differ by "
        f"{distance(ours.gradient, trl.gradient):.1e}, losses {ours.loss:.6f}, {trl.loss:.6f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--run", type=Path, help="take the rollouts from this run's ledger")
    parser.add_argument("--batch", type=int, default=0, help="number of the batch in that run")
    parser.add_argument("--start", default="models/smollm2-135m-atlas")
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--group", type=int, default=8, help="rollouts per question")
    parser.add_argument("--beta", type=float, nargs="+", default=[0.0, 0.04], help="weight of k3")
    parser.add_argument("--micro-batch", type=int, default=4, help="TRL's rollouts at a time")
    parser.add_argument("--micro-tokens", type=int, default=4096, help="our tokens at a time")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.run:
        stored = stored_rollouts(options.run / "ledger.sqlite", options.batch, options.group)
        groups_by_name = {options.run.name: stored}
    else:
        groups_by_name = {
            name: random_rollouts(SHAPES[name], options.questions, options.group)
            for name in options.shape
        }
    print("| rollouts | beta | trainer | steps/s | s/step | tokens learned | only read | peak GB |")
    print("|---|---|---|---|---|---|---|---|")
    for name, groups in groups_by_name.items():
        for beta in options.beta:
            report(name, beta, options.steps + 1, compare(groups, options, beta))


if __name__ == "__main__":
    main()
