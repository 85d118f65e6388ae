"""How soon after its start does a large, half finished run make its first new call?

    python -m benchmarks.ledger_resume [--calls 1000000]

The run's ledger holds `calls` calls. Half of its questions are done, with their rows in committed
parts; 256 were in flight when it stopped. The questions in flight are real: the stage started the
run, and a limit stopped it. The finished ones are copies, under other ids, of sixteen questions
that the stage finished; they are copied into ledger and parts in bulk. Then a child process resumes
`annotate`. The time counts from its start until its first new call reaches the simulated endpoint,
on the machine's monotonic clock. No file of the run is in the page cache at the start.
"""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path

import pyarrow as pa

from benchmarks.endpoint_process import REPOSITORY, Simulated, serving
from benchmarks.workload import annotate_command, question_id, write_run
from branchwise.pipelines.annotate.commit import QUESTIONS_A_PART
from branchwise.runs.record import LEDGER
from branchwise.runs.stage import DONE, LIMIT_REACHED
from branchwise.storage.ledger import Ledger
from branchwise.storage.ledger_rows import CALL_COLUMNS, checksum
from branchwise.storage.manifest import add_parts, load_manifest
from branchwise.storage.parts import read_parts, write_part

IN_FLIGHT = 256
POLL_S = 0.2
OWN = {"key": "lower(hex(randomblob(16)))", "question_id": "copies.question_id"}
"""Columns of a copied call that differ from the original, with their SQL."""
NAMES = ", ".join(CALL_COLUMNS)
COPY = (
    # Materialised, or a copy's random key would differ from the one in its checksum.
    f"WITH made ({NAMES}) AS MATERIALIZED "
    f"(SELECT {', '.join(OWN.get(name, name) for name in CALL_COLUMNS)} "
    "FROM copies JOIN finished.calls AS of ON of.question_id = copies.of) "
    f"INSERT INTO main.calls ({NAMES}, checksum) SELECT {NAMES}, checksum({NAMES}) FROM made"
)


def annotate(recipe: Path, run: Path, expected: int) -> None:
    """Runs the stage; exits if its exit code is not `expected`."""
    command = annotate_command(recipe, run)
    code = subprocess.run(
        command, stdout=subprocess.DEVNULL, cwd=REPOSITORY, check=False
    ).returncode
    if code != expected:
        sys.exit(f"annotate ended with code {code}, not {expected}")


def half_done(folder: Path, finished: Path, endpoint: Simulated, calls: int) -> Path:
    """Makes the run in `folder`; returns its recipe.

    Args:
        folder: Existing folder to write to.
        finished: Run of `QUESTIONS_A_PART` finished questions.
        endpoint: Endpoint for the calls of the questions in flight.
        calls: Number of stored calls of finished questions.
    """
    with Ledger(finished / LEDGER) as ledger:
        spent = ledger.totals()
    n_finished = max(calls // spent.calls, 1) * QUESTIONS_A_PART
    questions, in_flight = 2 * n_finished, min(IN_FLIGHT, n_finished)
    half_a_tree = (spent.input_tokens + spent.output_tokens) // QUESTIONS_A_PART // 2
    limits = {"max_questions_in_flight": in_flight}
    stopping = {"limits": {**limits, "max_tokens": half_a_tree * in_flight}}
    run = folder / "run"
    annotate(write_run(folder, endpoint.base_url, questions, stopping), run, LIMIT_REACHED)
    with closing(sqlite3.connect(run / LEDGER)) as connection:
        begun = {name for (name,) in connection.execute("SELECT question_id FROM calls")}
        untouched = [name for name in map(question_id, range(questions)) if name not in begun]
        copies = list(zip(untouched[:n_finished], cycle(map(question_id, range(QUESTIONS_A_PART)))))
        copy_calls(connection, finished, copies)
    copy_rows(run, finished, copies)
    return write_run(folder, endpoint.base_url, questions, {"limits": limits})


def copy_calls(
    connection: sqlite3.Connection, finished: Path, copies: Sequence[tuple[str, str]]
) -> None:
    """Inserts copies of the calls, for each (new question, finished question)."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("ATTACH ? AS finished", (str(finished / LEDGER),))
    connection.execute("CREATE TEMP TABLE copies (question_id TEXT, of TEXT)")
    connection.executemany("INSERT INTO copies VALUES (?, ?)", copies)
    connection.create_function("checksum", -1, lambda *values: checksum(values))
    connection.execute(COPY)
    connection.commit()


def copy_rows(run: Path, finished: Path, copies: Sequence[tuple[str, str]]) -> None:
    """Commits copies of trees and pairs, sixteen questions per part."""
    first = len(load_manifest(run).of("trees"))
    parts = []
    for number, start in enumerate(range(0, len(copies), QUESTIONS_A_PART), first):
        names = {
            finished_id: name for name, finished_id in copies[start : start + QUESTIONS_A_PART]
        }
        for table in ("trees", "pairs"):
            old = read_parts(finished, table)
            place = old.column_names.index("question_id")
            new = pa.array([names[finished_id] for finished_id in old["question_id"].to_pylist()])
            parts.append(write_part(run, table, old.set_column(place, "question_id", new), number))
    add_parts(run, parts)


def forget_pages(run: Path) -> None:
    """Removes the run's files from the kernel's page cache."""
    for path in run.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # only pages that are on disk can be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resumed(recipe: Path, run: Path, endpoint: Simulated) -> float:
    """Returns the seconds from the start of `annotate` to its first new call."""
    before = endpoint.occupancy().requests
    command = annotate_command(recipe, run)
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=REPOSITORY) as child:
        while (log := endpoint.occupancy()).requests == before and child.poll() is None:
            time.sleep(POLL_S)
        child.send_signal(signal.SIGTERM)
    if log.requests == before:
        sys.exit("annotate ended without a call")
    return log.came[before] - start


def opened(path: Path) -> tuple[float, int]:
    """Opens the ledger; returns the seconds and the number of calls."""
    start = time.monotonic()
    with Ledger(path) as ledger:
        return time.monotonic() - start, ledger.totals().calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=1_000_000)
    options = parser.parse_args()
    with serving("--latency-s", "0") as endpoint, tempfile.TemporaryDirectory() as name:
        little, large = Path(name) / "little", Path(name) / "large"
        for folder in (little, large):
            folder.mkdir()
        annotate(write_run(little, endpoint.base_url, QUESTIONS_A_PART, {}), little / "run", DONE)
        recipe = half_done(large, little / "run", endpoint, options.calls)
        run = large / "run"
        forget_pages(run)
        opening_s, calls = opened(run / LEDGER)
        forget_pages(run)
        seconds = resumed(recipe, run, endpoint)
        size = (run / LEDGER).stat().st_size
    print("| calls in the ledger | MB | opening it, s | first new call after, s | wanted |")
    print("|---|---|---|---|---|")
    print(f"| {calls:,} | {size / 1e6:.0f} | {opening_s:.2f} | {seconds:.1f} | < 30 |")


if __name__ == "__main__":
    main()
