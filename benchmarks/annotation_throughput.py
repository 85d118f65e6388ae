"""Does `annotate` keep its endpoint full, and how much faster is it than the published schedule?

    python -m benchmarks.annotation_throughput [--questions 512] [--iterations 64] [--slots 256]
                                               [--latency-s 2] [--published-s 60]

Runs the real stage as a child process (BM25 over 1,000 passages, ledger, parquet) against a
simulated endpoint (`benchmarks.simulated_endpoint`), with all questions in flight. The share of
slot-time in use, between the first and the last 5 % of the calls, comes from the endpoint's log.

The comparison is ReasonRAG's published schedule on the same endpoint: ten processes that make one
call at a time, 34 expansions and 64 judge calls per question. It runs for `--published-s` seconds,
and its rate is extrapolated.

The factor depends on the calls per question. With two hops there are 61 here and 98 in that
schedule. Deeper trees need more calls: at 110 per question the same endpoint allows 21 to 24 times
the schedule's rate.
"""

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.endpoint_process import REPOSITORY, Occupancy, Simulated, serving
from benchmarks.simulated_models import question_text
from benchmarks.workload import annotate_command, write_run

PUBLISHED_PROCESSES = 10
PUBLISHED_EXPANSIONS = 34
PUBLISHED_JUDGE_CALLS = 64


def annotated(options: argparse.Namespace, endpoint: Simulated, folder: Path) -> tuple[float, int]:
    """Runs the whole stage and returns its seconds and the number of finished questions."""
    changes = {
        "mcts": {"iterations": options.iterations},
        "limits": {
            # One call per question: calls queue at the endpoint, so every slot stays busy.
            "max_concurrency": options.questions,
            "max_questions_in_flight": options.questions,
            "timeout_s": max(120.0, 20 * options.latency_s),
        },
    }
    recipe = write_run(folder, endpoint.base_url, options.questions, changes)
    command = annotate_command(recipe, folder / "run")
    start = time.monotonic()
    process = subprocess.run(
        command, stdout=subprocess.PIPE, cwd=REPOSITORY, check=False, text=True
    )
    seconds = time.monotonic() - start
    if process.returncode:
        sys.exit(f"annotate failed with code {process.returncode}")
    return seconds, int(json.loads(process.stdout.splitlines()[-1])["questions_done"])


async def published(base_url: str, seconds: float) -> float:
    """Returns the questions per hour of the published schedule, from the calls that it starts in
    `seconds`.
    """
    numbers = itertools.count()
    start = time.monotonic()

    async def process() -> None:
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < start + seconds:
                await call(session, base_url, next(numbers))

    await asyncio.gather(*(process() for _ in range(PUBLISHED_PROCESSES)))
    calls = next(numbers)
    calls_per_question = PUBLISHED_EXPANSIONS + PUBLISHED_JUDGE_CALLS
    return calls / (time.monotonic() - start) * 3600 / calls_per_question


async def call(session: aiohttp.ClientSession, base_url: str, number: int) -> None:
    call_of_question = number % (PUBLISHED_EXPANSIONS + PUBLISHED_JUDGE_CALLS)
    content = f"Question: {question_text(number)}"
    body = {
        "model": "policy" if call_of_question < PUBLISHED_EXPANSIONS else "judge",
        "messages": [{"role": "system", "content": "-"}, {"role": "user", "content": content}],
        "seed": number,
    }
    async with session.post(f"{base_url}/chat/completions", json=body) as response:
        await response.json()


def report(log: Occupancy, seconds: float, questions: int, schedule: float) -> None:
    """Prints the table."""
    hourly = questions / seconds * 3600
    rows = (
        (
            "share of slot-time busy, first to last 5 % of calls",
            f"{log.share_busy():.3f}",
            "≥ 0.95",
        ),
        ("calls per question", f"{log.requests / questions:.1f}", "≤ 70"),
        ("calls that repeat another", f"{log.requests - log.distinct}", "0"),
        ("questions per hour, whole stage", f"{hourly:,.0f}", ""),
        ("questions per hour, published schedule", f"{schedule:,.0f}", ""),
        ("factor", f"{hourly / schedule:.1f}", "≥ 30"),
    )
    print("| quantity | measured | target |\n|---|---|---|")
    for quantity, measured, target in rows:
        print(f"| {quantity} | {measured} | {target} |")
    print(f"\n{questions} questions, {log.requests} calls, {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--questions", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=64)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--latency-s", type=float, default=2.0)
    parser.add_argument("--published-s", type=float, default=60.0)
    options = parser.parse_args()
    limits = ["--slots", options.slots, "--latency-s", options.latency_s]
    with serving(*map(str, limits)) as endpoint, tempfile.TemporaryDirectory() as folder:
        seconds, questions = annotated(options, endpoint, Path(folder))
        log = endpoint.occupancy()
        schedule = asyncio.run(published(endpoint.base_url, options.published_s))
    report(log, seconds, questions, schedule)


if __name__ == "__main__":
    main()
