"""Compares two evaluated policies: searches saved, and answers lost.

    python -m benchmarks.two_policies --run datasets/evo-test --policy time-dynamic --against start
    python -m benchmarks.two_policies … --pairs datasets/evo-rag-refinement-1 datasets/other

Reads the predictions that `branchwise eval` stored for both, for the questions that both ended. The
second form also counts the equal and reversed pairs of two runs over the same trees.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from branchwise.analysis.significance import Interval, crossed_bootstrap
from branchwise.storage.parts import read_parts
from branchwise.studies.significance import permutation_p, relative_saving

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""Predictions by source and question."""

COLUMNS = ["source", "question_id", "em", "searches", "refused", "supporting_recall"]


def predictions(run: Path, policy: str, evaluation: str | None) -> Rows:
    """Returns a policy's predictions in one evaluation of a run.

    Raises:
        SystemExit: If no evaluation matches, or more than one.
    """
    files = sorted((run / "eval" / policy).glob(f"{evaluation or '*'}/predictions.parquet"))
    if len(files) != 1:
        names = ", ".join(path.parent.name for path in files) or "none"
        sys.exit(f"{run / 'eval' / policy}: name one evaluation with --evaluation; found {names}")
    rows = pq.read_table(files[0], columns=COLUMNS).to_pylist()
    return {(row["source"], row["question_id"]): row for row in rows}


def compare(policy: Rows, baseline: Rows) -> list[str]:
    """Returns lines on searches, EM (of answerable questions only) and refusals."""
    both = sorted(policy.keys() & baseline.keys())
    before, after = ([float(rows[key]["searches"]) for key in both] for rows in (baseline, policy))
    graded = [
        key for key in both if policy[key]["em"] is not None and baseline[key]["em"] is not None
    ]
    em = [[float(rows[key]["em"]) for key in graded] for rows in (baseline, policy)]
    lost = [key for key in graded if policy[key]["em"] < baseline[key]["em"]]
    wrong = [key for key in graded if policy[key]["refused"]]
    found_all = sum(policy[key]["supporting_recall"] == 1 for key in wrong)
    refused = sum(bool(policy[key]["refused"]) for key in lost)
    won = sum(policy[key]["em"] > baseline[key]["em"] for key in graded)
    saved, saved_p = relative_saving(before, after), permutation_p(before, after)
    return [
        f"{len(both)} questions, {len(graded)} answerable",
        f"searches saved: {percent_interval(saved)} %, p {saved_p:.4f}",
        f"EM: {percent_interval(crossed_bootstrap(*em))} points, p {permutation_p(*em):.4f}",
        f"answers lost: {len(lost)}, {refused} of them refused; won: {won}",
        f"answerable ones refused: {len(wrong)}, {found_all} with every gold passage found",
    ]


def percent_interval(interval: Interval) -> str:
    """Formats an interval in per cent."""
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def in_common(runs: Sequence[Path]) -> str:
    """Counts the equal and the reversed pairs of two runs over the same trees."""
    columns = ["tree_id", "chosen_node", "rejected_node"]
    pairs, baseline_pairs = (
        {tuple(row.values()) for row in read_parts(run, "pairs", columns).to_pylist()}
        for run in runs
    )
    turned = {(tree, rejected, chosen) for tree, chosen, rejected in baseline_pairs}
    sizes = f"{len(pairs)} and {len(baseline_pairs)} pairs"
    return f"{sizes}: {len(pairs & baseline_pairs)} equal, {len(pairs & turned)} reversed"


def main() -> None:
    """Prints both policies' comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="run folder of the evaluation")
    parser.add_argument("--policy", required=True, help="name of the policy in the evaluation")
    parser.add_argument("--against", required=True, help="name of the policy to compare it with")
    parser.add_argument(
        "--evaluation",
        help="name of the evaluation if there are several, such as atlas-test-6f6ac9",
    )
    parser.add_argument(
        "--pairs", type=Path, nargs=2, metavar="RUN", help="two runs whose pairs to compare"
    )
    options = parser.parse_args()
    names = (options.policy, options.against)
    policy, baseline = (predictions(options.run, name, options.evaluation) for name in names)
    print(f"{options.policy} against {options.against}")
    print(*compare(policy, baseline), sep="\n")
    if options.pairs:
        print(in_common(options.pairs))


if __name__ == "__main__":
    main()
