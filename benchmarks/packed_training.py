"""How much faster is a preference training that reads shared prompts once?

    python -m benchmarks.packed_training --run datasets/atlas [--pairs 48] [--micro-batch 4]

Trains on the same pairs, in batches of the same number of pairs, in two ways. Stock: TRL's
`DPOTrainer` with whole sequences, sorted by length, and a reference pass in every step. Packed:
`training.packing` and one reference pass, which is in the time. Prints pairs per second, the
tokens that go through the layers with a gradient and without, and the factor that these tokens
alone would give: an adapter's backward pass costs about as much as its forward pass, because the
weights below it do not change. The bound leaves out the output layer, which stock TRL also runs
over the prompts on a CPU. Every round trains both in turn; the fastest round of each counts.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.training.arguments import silence_libraries
from branchwise.training.packing import step_logps
from branchwise.training.preference.preference_tokens import PreferenceTokens, tokenise_pairs
from branchwise.training.settings import DpoSettings, TrainingSettings
from branchwise.training.training_run import TrainingRun
from branchwise.types import Pair
from branchwise.weights.policies import load_policy, policy_files


@dataclass
class Measured:
    """One training.

    Attributes:
        learned, read: Tokens that went through the layers with a gradient, and without.
    """

    seconds: float = 0.0
    learned: int = 0
    read: int = 0

    @property
    def passes(self) -> int:
        """Number of token passes, forward and backward."""
        return 2 * self.learned + self.read


def train_once(
    start: str, pairs: Sequence[PreferenceTokens], training: TrainingSettings
) -> Measured:
    """Trains a new adapter on `start` and discards it; loading is not timed."""
    from transformers import PrinterCallback

    from branchwise.training.preference.trainer import PairTrainer

    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun("dpo", training, start, Path(folder), seed=0)
        model, tokenizer = run.load_start()
        trainer = PairTrainer(model, tokenizer, pairs, run)
        trainer.remove_callback(PrinterCallback)
        model.get_input_embeddings().register_forward_hook(counting(measured))
        began = time.perf_counter()
        if training.packed:
            rows = [row for pair in pairs for row in pair.rows]
            with trainer.model.disable_adapter():
                trainer.use_start_logps(step_logps(trainer, rows))
        trainer.train()
        measured.seconds = time.perf_counter() - began
    return measured


def counting(measured: Any) -> Any:
    """Returns a hook of the embedding that counts tokens in `measured.learned` (with a gradient) or
    `measured.read`.
    """
    import torch

    def count(module: Any, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            measured.learned += inputs[0].numel()
        else:
            measured.read += inputs[0].numel()

    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, default=Path("datasets/atlas"))
    parser.add_argument("--start", default="models/smollm2-135m-atlas")
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8, help="pairs per step")
    parser.add_argument("--micro-batch", type=int, default=4, help="pairs at a time")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", default="auto", help="auto, float32 or bfloat16")
    options = parser.parse_args()
    silence_libraries()
    rows = table_to_records(read_parts(options.run, "pairs"), Pair)[: options.pairs]
    pairs = tokenise_pairs(rows, load_policy(policy_files(options.start))[1])
    longest = max(map(len, pairs))
    states = {pair.prompt for pair in pairs}
    print(f"{len(pairs)} pairs of {len(states)} states; the longest has {longest} tokens")
    best: dict[str, Measured] = {}
    for _ in range(options.rounds):
        for name in ("stock", "packed"):
            settings = DpoSettings(
                epochs=options.epochs,
                batch_size=options.batch,
                micro_batch=options.micro_batch,
            )
            training = TrainingSettings(
                dpo=settings, packed=name == "packed", precision=options.precision
            )
            measured = train_once(options.start, pairs, training)
            best[name] = min(best.get(name, measured), measured, key=lambda m: m.seconds)
    for name, measured in best.items():
        print(
            f"{name:<7}{options.epochs * len(pairs) / measured.seconds:7.2f} pairs/s, "
            f"{measured.learned} tokens learned from, {measured.read} only read"
        )
    stock, packed = best["stock"], best["packed"]
    print(f"factor: {stock.seconds / packed.seconds:.2f}")
    print(f"bound from the tokens alone: {stock.passes / packed.passes:.2f}")


if __name__ == "__main__":
    main()
