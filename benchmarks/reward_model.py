"""How long does a reward model take to train on pairs whose steps are in the cache?

    python -m benchmarks.reward_model [--pairs 10000] [--width 576] [--epochs 1]

Makes up steps of 600 tokens, two per state, with random vectors in a separate cache, and trains
seven heads on comparisons of them. The time covers reading the cache, standardising, learning,
measuring and writing, as when `branchwise train-rm` reruns on a run. It does not cover the
encoder's first pass over the steps.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from branchwise.modeling.embedding import Backbone, FrozenEncoder, Prefix, Tokens, Vector
from branchwise.rewards.settings import REWARDS, EvoRagSettings
from branchwise.runs.recipe import Recipe
from branchwise.training.reward_model.comparisons import SiblingComparison
from branchwise.training.reward_model.train import RewardTrainingData, train_reward_model
from branchwise.training.settings import RewardModelSettings
from branchwise.types import Message
from branchwise.weights.policies import PACKAGED

TOKENS = 600


class MadeUp(FrozenEncoder):
    """An encoder whose steps are numbers, each at the end of its own 600 tokens."""

    def tokens(self, prefixes: Sequence[Prefix]) -> list[Tokens]:
        """Returns one sequence per step."""
        return [(*range(TOKENS - 1), int(prefix.text)) for prefix in prefixes]


class Noise(Backbone):
    """A model that returns a random vector for every sequence, at once."""

    reads_trees, most_tokens = False, None

    def __init__(self, width: int) -> None:
        self._width, self._random = width, np.random.default_rng(0)

    def last_states(
        self, sequences: Sequence[Tokens], batch_tokens: int
    ) -> Iterator[Mapping[Tokens, Vector]]:
        """Yields one vector per sequence."""
        vectors = self._random.normal(size=(len(sequences), self._width)).astype(np.float32)
        yield dict(zip(sequences, vectors, strict=True))


def made_up(pairs: int) -> RewardTrainingData:
    """Builds `pairs` comparisons, four per question, of twice as many steps."""
    random, prompt = np.random.default_rng(1), (Message("user", "Where?"),)
    gaps = random.normal(size=(pairs, len(REWARDS)))
    comparisons = [
        SiblingComparison(
            f"q{i // 4}",
            i % 10,
            2 * i,
            2 * i + 1,
            dict(zip(REWARDS, gaps[i].tolist(), strict=True)),
            abs(float(gaps[i].sum())) + 0.3,
        )
        for i in range(pairs)
    ]
    steps = [Prefix(prompt, str(n)) for n in range(2 * pairs)]
    scheme = Recipe(name="benchmark", rewards=EvoRagSettings()).scheme
    return RewardTrainingData(steps, comparisons, scheme)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument(
        "--width", type=int, default=576, help="width of a vector; 4096 for an 8B model"
    )
    parser.add_argument("--epochs", type=int, default=RewardModelSettings().epochs)
    options = parser.parse_args()
    material = made_up(options.pairs)
    settings = RewardModelSettings(epochs=options.epochs)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BRANCHWISE_CACHE"] = folder
        filling = MadeUp(PACKAGED)
        filling._backbone = Noise(options.width)
        filling.embed_cached(filling.tokens(material.steps))
        for target in ("first", "again"):
            began = time.perf_counter()
            report = train_reward_model(
                material,
                settings,
                max_dropped_share=0,
                encoder=MadeUp(PACKAGED),
                target=Path(folder) / target,
                seed=0,
                log=print,
            )
            seconds = time.perf_counter() - began
            print(
                f"{target}: {options.pairs} cached pairs of {len(material.steps)} steps, "
                f"width {options.width}, {options.epochs} epochs: {seconds:.1f} s in all, "
                f"{report.seconds:.1f} s of learning"
            )


if __name__ == "__main__":
    main()
