"""How much does the default recipe cost, and how many pairs does it give?

    python -m benchmarks.whole_chain [--config FILE] [--stages annotate train-dpo eval] [--keep]

Runs the stages in order, each in its own process, on a new run folder that is removed at the end
(`--keep` keeps it). Prints the seconds and peak memory of each stage, the time of `make setup` in
an installed environment, the time of `--help`, the number of pairs that differ in content and in
label, and the number of questions with a pair.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from branchwise.storage.views import connect, query

RUN = Path("datasets/benchmark")
MODELS = Path("models/benchmark")
BRANCHWISE = Path(sys.executable).with_name("branchwise")
PAIRS = """
SELECT
    count(*) FILTER (chosen[1].content <> rejected[1].content AND chosen_reward > rejected_reward),
    count(DISTINCT question_id),
    (SELECT count(*) FROM questions)
FROM pairs
"""
BY_DEPTH = """
SELECT depth, chosen_action, rejected_action, count(*) FROM pairs GROUP BY ALL ORDER BY ALL
"""


def measured(command: list[str]) -> tuple[float, float]:
    """Runs a command that must succeed; returns its seconds and peak resident memory (GB)."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)  # the kernel's account of this child alone
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9


def describe_pairs() -> None:
    """Prints statistics of the run's pairs."""
    with connect(RUN) as connection:
        ((differing, paired, questions),) = next(query(connection, RUN, PAIRS)).rows
        by_depth = next(query(connection, RUN, BY_DEPTH)).rows
    print(f"pairs whose contents and labels differ: {differing}")
    print(f"questions with a pair: {paired} of {questions}")
    for depth, chosen, rejected, count in by_depth:
        print(f"  depth {depth}: {chosen} over {rejected}: {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", default="configs/atlas.yaml")
    parser.add_argument("--stages", nargs="+", default=["annotate", "train-dpo", "eval"])
    parser.add_argument("--keep", action="store_true", help="keep the run and its models")
    options = parser.parse_args()
    for folder in (RUN, MODELS):
        shutil.rmtree(folder, ignore_errors=True)
    print(f"branchwise --help: {measured([str(BRANCHWISE), '--help'])[0]:.2f} s")
    print(f"make setup, already installed: {measured(['make', '--silent', 'setup'])[0]:.2f} s")
    total = 0.0
    for stage in options.stages:
        command = [str(BRANCHWISE), stage, "--config", options.config, "--run", str(RUN)]
        seconds, peak_gb = measured(command)
        total += seconds
        print(f"{stage}: {seconds:.0f} s, peak {peak_gb:.2f} GB", flush=True)
        if stage == "annotate":
            describe_pairs()
    print(f"all stages: {total / 60:.1f} minutes")
    if not options.keep:
        for folder in (RUN, MODELS):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
