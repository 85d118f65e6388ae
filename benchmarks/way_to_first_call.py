"""How many functions does a stage pass through before its first model call?

    python -m benchmarks.way_to_first_call [--checkout DIR] [--stage annotate|eval] [--list]

Runs the real stage on two questions, BM25 and a simulated endpoint, and traces its Python calls
from the stage function to the first call of an engine's `sample`. Prints:

- stops: different functions that were entered, in order of their first call. Functions of the
  product's rooms count, whatever calls them; a room is a package such as `runs`. Comprehensions,
  lambdas, generated methods and whatever an import runs do not count.
- rooms: rooms with a stop, and how often the next stop is in another room.
- climbs: calls from a lower room up into a higher one, by the layers of import-linter in
  `pyproject.toml`. Lower rooms cannot import higher ones, so each climb is a callback (here lambdas
  count), an iterator that is passed down, or a class that implements a lower room's protocol.

The caller is the nearest project function on the stack. A coroutine that runs as a task therefore
counts as called by the stage, and only the stage's thread is traced, not the ledger's. `--list`
prints all stops. `--checkout` measures another version of the project, such as a worktree, with the
same recipe. The numbers depend on the recipe, not on the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.endpoint_process import REPOSITORY, serving
from benchmarks.stage_trace import STAGE_FUNCTIONS
from benchmarks.workload import write_run

QUESTIONS = 2
ITERATIONS = 4
"""Iterations of the tree search; the first call comes in the first one."""


@dataclass(frozen=True)
class Stop:
    """A function on the way."""

    room: str
    name: str
    calls: int


@dataclass(frozen=True)
class Climb:
    """A function that called one in a higher room."""

    caller: str
    callee: str
    calls: int


@dataclass(frozen=True)
class Way:
    """The way of a stage to its first model call.

    Attributes:
        stops: In order of their first call.
        first_call: Method of the engine that was called; None if the stage made no call.
    """

    stops: list[Stop]
    climbs: list[Climb]
    first_call: str | None

    @property
    def calls(self) -> int:
        return sum(stop.calls for stop in self.stops)

    @property
    def visits(self) -> list[str]:
        """Rooms in the order of the way; a room that it returns to is repeated."""
        rooms = [stop.room for stop in self.stops]
        return rooms[:1] + [room for before, room in pairwise(rooms) if room != before]


def trace(checkout: Path, stage: str) -> Way:
    """Runs a stage of a checkout in a new process.

    Raises:
        RuntimeError: If the stage failed.
    """
    with tempfile.TemporaryDirectory() as name, serving("--latency-s", "0") as endpoint:
        folder = Path(name)
        questions = {"source": "jsonl", "questions": str(folder / "questions.jsonl"), "split": None}
        changes = {
            "mcts": {"iterations": ITERATIONS},
            "evaluation": {"policies": {"policy": "policy"}, "set": questions},
        }
        recipe = write_run(folder, endpoint.base_url, QUESTIONS, changes)
        words = [stage, "--config", str(recipe), "--run", str(folder / "run")]
        return run_traced(checkout, folder, words)


def run_traced(checkout: Path, folder: Path, words: list[str]) -> Way:
    """Traces the command `words` of a checkout; writes to `folder`.

    Raises:
        RuntimeError: If the command failed.
    """
    output = folder / "way.json"
    program = str(REPOSITORY / "benchmarks" / "stage_trace.py")
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "BRANCHWISE_CACHE": str(folder / "cache"),  # empty, so that the stage builds its index
        "OPENAI_API_KEY": "none",
    }
    ended = subprocess.run(
        [sys.executable, "-P", program, str(checkout), str(output), *words],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{words[0]} of {checkout} failed: {ended.stderr or ended.stdout}")
    way = json.loads(output.read_text())
    return Way(
        [Stop(*fields) for fields in way["stops"]],
        [Climb(*fields) for fields in way["climbs"]],
        way["first_call"],
    )


def describe(stage: str, way: Way, *, lists_stops: bool) -> None:
    """Prints a way."""
    rooms = Counter(stop.room for stop in way.stops)
    print(f"{stage}: {len(way.stops)} stops before {way.first_call or 'the end, without a call'}")
    print(f"  calls   {way.calls:,}")
    print(f"  rooms   {len(rooms)}, changed {len(way.visits) - 1} times")
    print(f"  climbs  {len(way.climbs)}")
    for climb in way.climbs:
        print(f"    {climb.caller} -> {climb.callee} ({climb.calls:,}x)")
    visits = Counter(way.visits)
    print(f"  {'room':<12} {'stops':>6} {'visits':>6} {'calls':>8}")
    for room, count in rooms.most_common():
        calls = sum(stop.calls for stop in way.stops if stop.room == room)
        print(f"  {room:<12} {count:>6} {visits[room]:>6} {calls:>8,}")
    if lists_stops:
        for number, stop in enumerate(way.stops, 1):
            print(f"  {number:>4} {stop.name} ({stop.calls:,}x)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkout", type=Path, default=REPOSITORY, help="default: this one")
    parser.add_argument("--stage", choices=STAGE_FUNCTIONS, help="default: all of them")
    parser.add_argument("--list", action="store_true", help="print all stops")
    options = parser.parse_args()
    for stage in [options.stage] if options.stage else STAGE_FUNCTIONS:
        way = trace(options.checkout.resolve(), stage)
        describe(stage, way, lists_stops=options.list)


if __name__ == "__main__":
    main()
