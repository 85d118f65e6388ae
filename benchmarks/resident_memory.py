"""Does `annotate` need more memory for more questions, and how does its ledger grow?

    python -m benchmarks.resident_memory [--questions 20000] [--iterations 4] [--in-flight 256]

Runs the real stage as a child process, once with a tenth of the questions and once with all, with
the same number in flight. Trees are small, so that it takes minutes, and the simulated endpoint has
no latency. Peak resident memory is the kernel's count for the child. The ledger's bytes per call
are the size of its file after the run, divided by its calls.
"""

import argparse
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.endpoint_process import serving
from benchmarks.whole_chain import measured
from benchmarks.workload import annotate_command, write_run


def run(questions: int, changes: Mapping[str, Any]) -> tuple[float, float, int, int]:
    """Returns the seconds and peak memory (MB) of one run, its calls, and its ledger's bytes."""
    with serving("--latency-s", "0") as endpoint, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_run(folder, endpoint.base_url, questions, changes)
        seconds, peak_gb = measured(annotate_command(recipe, folder / "run"))
        ledger = folder / "run" / "ledger.sqlite"
        with closing(sqlite3.connect(ledger)) as connection:
            (calls,) = connection.execute("SELECT count(*) FROM calls").fetchone()
        return seconds, 1000 * peak_gb, calls, ledger.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=256)
    options = parser.parse_args()
    changes = {
        "mcts": {"iterations": options.iterations},
        "limits": {"max_concurrency": 64, "max_questions_in_flight": options.in_flight},
    }
    peaks = []
    print("| questions | calls | seconds | peak MB | ledger MB | ledger bytes per call |")
    print("|---|---|---|---|---|---|")
    for questions in (options.questions // 10, options.questions):
        seconds, peak_mb, calls, size = run(questions, changes)
        peaks.append(peak_mb)
        print(
            f"| {questions:,} | {calls:,} | {seconds:.0f} | {peak_mb:.0f} | {size / 1e6:.1f} | "
            f"{size / calls:.0f} |",
            flush=True,
        )
    print(
        f"\nten times the questions need {peaks[1] / peaks[0]:.2f} times the memory (wanted ≤ 1.20)"
    )


if __name__ == "__main__":
    main()
