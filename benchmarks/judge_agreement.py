"""How good are a judge's scores? Prints the unscored share, and the correlation with answers' F1.

    branchwise annotate --config configs/reasonrag.yaml --run datasets/reasonrag
    python -m benchmarks.judge_agreement --run datasets/reasonrag

Compares each judged node of the run with the mean F1 of the answers below it in the final tree.
Correlations (Pearson, Spearman) come with the 95 % interval of a bootstrap over questions, because
nodes of one question are not independent.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import pearsonr, spearmanr

from branchwise.runs.annotated_trees import stored_trees
from branchwise.runs.folder import existing_run
from branchwise.storage.manifest import load_manifest
from branchwise.types import EventKind, TreeNode

RESAMPLES = 2_000
Points = list[tuple[float, float]]
"""(judge's score, mean F1 below) per node of one question."""


def answers_below(tree: Sequence[TreeNode]) -> dict[int, list[float]]:
    """Returns the F1 of the answers at and below each node."""
    parents = {node.node_id: node.parent_id for node in tree}
    below: dict[int, list[float]] = defaultdict(list)
    for node in tree:
        if node.f1 is None:
            continue
        at = node.node_id
        while at in parents:
            below[at].append(node.f1)
            at = parents[at]
    return below


def unscored_reasons(run: Path) -> Counter[str]:
    """Counts judge replies without a score, per reason."""
    counts = Counter[str]()
    for part in load_manifest(run).of("trees"):
        for event, n in part.events.items():
            counts[event.reason] += n if event.kind is EventKind.UNSCORED else 0
    return +counts


def correlation(points: Points, *, ranked: bool) -> float:
    """Returns Pearson's correlation, or Spearman's if `ranked`; NaN if one side never varies."""
    scores, worth = zip(*points, strict=True)
    if len(set(scores)) == 1 or len(set(worth)) == 1:
        return float("nan")
    return float((spearmanr if ranked else pearsonr)(scores, worth).statistic)


def interval(questions: Sequence[Points], *, ranked: bool) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval over questions."""
    draw = np.random.default_rng(0)
    correlations = []
    for _ in range(RESAMPLES):
        chosen = draw.integers(len(questions), size=len(questions))
        value = correlation([p for i in chosen for p in questions[i]], ranked=ranked)
        if not np.isnan(value):
            correlations.append(value)
    if not correlations:
        return float("nan"), float("nan")
    low, high = np.percentile(correlations, [2.5, 97.5])
    return float(low), float(high)


def judged(nodes: Iterable[TreeNode]) -> list[TreeNode]:
    return [node for node in nodes if node.judge_text is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, default=Path("datasets/reasonrag"))
    options = parser.parse_args()
    judged_nodes = unscored = 0
    used: Counter[float] = Counter()
    questions: list[Points] = []
    for tree in stored_trees(existing_run(options.run)):
        nodes, below = judged(tree.nodes), answers_below(tree.nodes)
        scored = [(n, n.judge_score) for n in nodes if n.judge_score is not None]
        judged_nodes += len(nodes)
        unscored += len(nodes) - len(scored)
        used.update(score for _, score in scored)
        points = [(score, fmean(below[n.node_id])) for n, score in scored if below[n.node_id]]
        if points:
            questions.append(points)
    print(f"judged nodes: {judged_nodes}, unscored {unscored / max(judged_nodes, 1):.1%}")
    for reason, count in unscored_reasons(options.run).most_common():
        print(f"  unscored: {reason}: {count}")
    print(f"scores: {', '.join(f'{score:g} × {n}' for score, n in used.most_common(8))}")
    points = [point for of_question in questions for point in of_question]
    if not points:
        print("no scored node has an answer below it: nothing to correlate")
        return
    print(f"scored nodes with an answer below: {len(points)}, of {len(questions)} questions")
    for name, ranked in (("Pearson", False), ("Spearman", True)):
        low, high = interval(questions, ranked=ranked)
        print(f"{name}: {correlation(points, ranked=ranked):+.3f} [{low:+.3f}, {high:+.3f}]")


if __name__ == "__main__":
    main()
