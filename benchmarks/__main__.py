"""`make bench`: runs the benchmarks that need no other server, one after the other."""

import runpy
import sys

BENCHMARKS = (
    "atlas_retrieval",
    "embedded_policy",
    "engine_throughput",
    "whole_chain",
    "annotation_throughput",
    "call_rate",
    "resident_memory",
    "reward_model",
    "ledger_resume",
    "injected_passages",
)


def main() -> None:
    """Runs the named benchmarks, or all of them, with their default settings."""
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"\n== {name} ==", flush=True)
        sys.argv = [name]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")


main()
