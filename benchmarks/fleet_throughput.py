"""Do several servers give several times the rate of one, and what does a dead one cost?

    python -m benchmarks.fleet_throughput [--servers 3] [--questions 384] [--iterations 32]
                                          [--slots 256] [--latency-s 2]

Runs the real stage `annotate` as a child process against simulated endpoints, each a process
(`benchmarks.simulated_endpoint`): with one server, with all, and with all while one is killed after
a third of the calls. `--questions` counts per server. Rate and share of busy slots are those
between the first and the last 5 % of all calls, from the endpoints' logs. Calls of the killed
server come from its log shortly before.

One process makes about 1,000 calls per second on a core of its own; stage and endpoints share this
machine's cores. The rows of the third run must equal those of the second.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.endpoint_process import EDGE, REPOSITORY, Occupancy, Simulated, serving
from benchmarks.workload import annotate_command, write_run
from branchwise.storage import read_parts

KILL_AT = 1 / 3
"""Share of the calls after which a server is killed."""


@dataclass(frozen=True)
class Measured:
    """One run of the stage.

    Attributes:
        questions: Finished questions, of `asked`.
        calls: Calls that the endpoints received.
        repeated: Calls beyond those in the ledger.
        busy: Share of slot-time in use, in [0, 1].
    """

    asked: int
    questions: int
    calls: int
    repeated: int
    calls_per_s: float
    busy: float
    rows: tuple[pa.Table, pa.Table]


def start(recipe: Path, run: Path) -> "subprocess.Popen[str]":
    """Starts the stage."""
    command = annotate_command(recipe, run)
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)


def measure(options: argparse.Namespace, servers: int, folder: Path, *, kill: bool) -> Measured:
    """Runs the stage against so many servers; returns what the endpoints logged."""
    folder.mkdir()
    limits = ["--slots", str(options.slots), "--latency-s", str(options.latency_s)]
    asked = options.questions * servers
    with ExitStack() as stack:
        endpoints = [stack.enter_context(serving(*limits)) for _ in range(servers)]
        at_servers = {
            "base_url": None,
            "base_urls": [endpoint.base_url for endpoint in endpoints],
            "identity": "simulated",
        }
        changes = {
            "policy": at_servers,
            "judge": at_servers,
            "mcts": {"iterations": options.iterations},
            "limits": {
                "max_concurrency": options.questions,
                "max_questions_in_flight": asked,
                "timeout_s": max(120.0, 20 * options.latency_s),
            },
        }
        process = start(write_run(folder, endpoints[0].base_url, asked, changes), folder / "run")
        killed: list[Occupancy] = []
        if kill:
            killed.append(killed_server(process, endpoints, options, asked))
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"annotate failed with code {process.returncode}")
        logs = [*killed, *(endpoint.occupancy() for endpoint in endpoints[len(killed) :])]
    totals = json.loads(output.splitlines()[-1])
    calls = sum(log.requests for log in logs)
    rate, busy = together(logs)
    rows = tuple(rows_of(folder / "run", table) for table in ("trees", "pairs"))
    finished = int(totals["questions_done"])
    return Measured(asked, finished, calls, calls - totals["calls"], rate, busy, (rows[0], rows[1]))


def killed_server(
    process: "subprocess.Popen[str]",
    endpoints: Sequence[Simulated],
    options: argparse.Namespace,
    questions: int,
) -> Occupancy:
    """Kills the first server after a share of the calls; returns its log until then."""
    expected = KILL_AT * questions * options.iterations / len(endpoints)
    while process.poll() is None:
        log = endpoints[0].occupancy()
        if log.requests >= expected:
            os.kill(endpoints[0].pid, signal.SIGKILL)
            return log
        time.sleep(0.5)
    sys.exit("the stage ended before a server was killed")


def together(logs: Sequence[Occupancy]) -> tuple[float, float]:
    """Returns calls per second and the share of busy slots of several servers."""
    ended = np.sort(np.concatenate([log.ended for log in logs]))
    begun = np.sort(np.concatenate([log.began for log in logs]))
    left_out = int(EDGE * len(ended))
    first, last = float(begun[left_out]), float(ended[-1 - left_out])
    busy = sum(log.busy_slot_s(first, last) for log in logs)
    slots = sum(log.slots for log in logs)
    inside = int(np.sum((ended >= first) & (ended <= last)))
    return inside / (last - first), busy / (slots * (last - first))


def rows_of(run: Path, table: str) -> pa.Table:
    """Returns the rows of a table without the digest of the run's settings, in a fixed order."""
    rows = read_parts(run, table)
    # It depends on the paths of the questions.
    rows = rows.drop_columns([name for name in rows.column_names if name == "config_digest"])
    key = ["tree_id", "node_id"] if table == "trees" else ["pair_id"]
    return rows.sort_by([(name, "ascending") for name in key])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--questions", type=int, default=384)
    parser.add_argument("--iterations", type=int, default=32)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--latency-s", type=float, default=2.0)
    options = parser.parse_args()
    plans = (("one server", 1, False), ("all", options.servers, False))
    plans = (*plans, ("all, one killed", options.servers, True))
    print("| run | calls/s | times one server | slots busy | calls repeated | questions |")
    print("|---|---|---|---|---|---|")
    results: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, servers, kill in plans:
            result = measure(options, servers, Path(folder) / name.replace(" ", "-"), kill=kill)
            results.append(result)
            factor = result.calls_per_s / results[0].calls_per_s
            print(
                f"| {name} | {result.calls_per_s:,.0f} | {factor:.2f} | {result.busy:.3f} | "
                f"{result.repeated} | {result.questions} of {result.asked} |",
                flush=True,
            )
    equal = [a.equals(b) for a, b in zip(results[1].rows, results[2].rows, strict=True)]
    print(f"\nrows of the last two runs are equal: trees {equal[0]}, pairs {equal[1]}")


if __name__ == "__main__":
    main()
