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

from branchwise.analysis.significance import (
    Interval,
    crossed_bootstrap,
    permutation_p,
    relative_saving,
)
from branchwise.storage.parts import read_parts

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""Predictions by source and question."""

COLUMNS = ["source", "question_id", "em", "searches", "refused", "supporting_recall"]


def predictions(run: Path, policy: str, evaluation: str | None) -> Rows:
    """Returns a policy's predictions in one evaluation of a run.

    Raises:
        SystemExit: If no evaluation matches, or more than one.
    """
    found = sorted((run / "eval" / policy).glob(f"{evaluation or '*'}/predictions.parquet"))
    if len(found) != 1:
        names = ", ".join(path.parent.name for path in found) or "none"
        sys.exit(f"{run / 'eval' / policy}: name one evaluation with --evaluation; found {names}")
    rows = pq.read_table(found[0], columns=COLUMNS).to_pylist()
    return {(row["source"], row["question_id"]): row for row in rows}


def compare(own: Rows, base: Rows) -> list[str]:
    """Returns lines on searches, EM (of answerable questions only) and refusals."""
    both = sorted(own.keys() & base.keys())
    before, after = ([float(rows[key]["searches"]) for key in both] for rows in (base, own))
    graded = [key for key in both if own[key]["em"] is not None and base[key]["em"] is not None]
    em = [[float(rows[key]["em"]) for key in graded] for rows in (base, own)]
    lost = [key for key in graded if own[key]["em"] < base[key]["em"]]
    wrong = [key for key in graded if own[key]["refused"]]
    found_all = sum(own[key]["supporting_recall"] == 1 for key in wrong)
    refused = sum(bool(own[key]["refused"]) for key in lost)
    won = sum(own[key]["em"] > base[key]["em"] for key in graded)
    saved, saved_p = relative_saving(before, after), permutation_p(before, after)
    return [
        f"{len(both)} questions, {len(graded)} answerable",
        f"searches saved: {told(saved)} %, p {saved_p:.4f}",
        f"EM: {told(crossed_bootstrap(*em))} points, p {permutation_p(*em):.4f}",
        f"answers lost: {len(lost)}, {refused} of them refused; won: {won}",
        f"answerable ones refused: {len(wrong)}, {found_all} with every gold passage found",
    ]


def told(interval: Interval) -> str:
    """Formats an interval in per cent."""
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def in_common(runs: Sequence[Path]) -> str:
    """Counts the equal and the reversed pairs of two runs over the same trees."""
    columns = ["tree_id", "chosen_node", "rejected_node"]
    one, other = (
        {tuple(row.values()) for row in read_parts(run, "pairs", columns).to_pylist()}
        for run in runs
    )
    turned = {(tree, rejected, chosen) for tree, chosen, rejected in other}
    sizes = f"{len(one)} and {len(other)} pairs"
    return f"{sizes}: {len(one & other)} equal, {len(one & turned)} reversed"


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
    asked = parser.parse_args()
    names = (asked.policy, asked.against)
    own, base = (predictions(asked.run, name, asked.evaluation) for name in names)
    print(f"{asked.policy} against {asked.against}")
    print(*compare(own, base), sep="\n")
    if asked.pairs:
        print(in_common(asked.pairs))


if __name__ == "__main__":
    main()
