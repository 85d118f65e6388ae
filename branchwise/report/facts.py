"""Facts about a run for its report: counts, distributions, curves and evaluations.

DuckDB counts distributions over the committed parts, so even a million pairs are never held in
memory.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from branchwise.analysis import wilson
from branchwise.base import as_object
from branchwise.storage import (
    Manifest,
    connect,
    load_manifest,
    read_parts,
    rows_of,
    table_to_records,
)
from branchwise.training import METRICS, read_metrics
from branchwise.types import Failure

DISTRIBUTIONS = {
    "depth": """
        SELECT action, depth, count(*) AS nodes FROM trees WHERE depth > 0
        GROUP BY ALL ORDER BY depth, action""",
    "actions": """
        SELECT chosen_action AS chosen, rejected_action AS rejected, count(*) AS pairs
        FROM pairs GROUP BY ALL ORDER BY pairs DESC""",
    "gaps": """
        WITH edge AS (SELECT greatest(max(reward_gap), 1e-9) / 20 AS width FROM pairs)
        SELECT least(floor(reward_gap / width), 19) * width AS low,
               least(floor(reward_gap / width), 19) * width + width AS high, count(*) AS pairs
        FROM pairs, edge GROUP BY ALL ORDER BY low""",
    "lengths": """
        WITH sides AS (
            SELECT 'chosen' AS side, length(chosen[1].content) AS n FROM pairs
            UNION ALL SELECT 'rejected', length(rejected[1].content) FROM pairs),
        edge AS (SELECT greatest(quantile_cont(n, 0.99), 20) / 20 AS width FROM sides)
        SELECT side, least(floor(n / width), 20) * width AS low,
               least(floor(n / width), 20) * width + width AS high, count(*) AS texts
        FROM sides, edge GROUP BY ALL ORDER BY side, low""",
    "rewards": """
        SELECT depth, count(*) AS nodes, min(reward) AS least, quantile_cont(reward, 0.25) AS low,
               median(reward) AS median, quantile_cont(reward, 0.75) AS high,
               max(reward) AS most
        FROM trees WHERE reward IS NOT NULL AND depth > 0 GROUP BY depth ORDER BY depth""",
    "judge": """
        WITH RECURSIVE ended AS (
            SELECT tree_id, node_id, parent_id, em FROM trees WHERE em IS NOT NULL
            UNION ALL
            SELECT tree_id, node_id, parent_id, unnest([r.em for r in rollouts]) FROM trees),
        reached AS (
            SELECT * FROM ended WHERE EXISTS (FROM trees WHERE judge_score IS NOT NULL)
            UNION ALL
            SELECT trees.tree_id, trees.node_id, trees.parent_id, reached.em
            FROM reached JOIN trees
            ON trees.tree_id = reached.tree_id AND trees.node_id = reached.parent_id),
        outcomes AS (SELECT tree_id, node_id, avg(em) AS em FROM reached GROUP BY ALL)
        SELECT least(floor(judge_score * 10), 9) / 10 AS low,
               least(floor(judge_score * 10), 9) / 10 + 0.1 AS high, count(*) AS nodes,
               avg(outcomes.em) AS em
        FROM trees LEFT JOIN outcomes USING (tree_id, node_id)
        WHERE judge_score IS NOT NULL GROUP BY ALL ORDER BY low""",
    "components": """
        WITH each AS (SELECT unnest(components, recursive := true) FROM trees),
        edge AS (SELECT name, min(value) AS least, greatest(max(value) - min(value), 1e-9) / 12
                        AS width FROM each WHERE value IS NOT NULL GROUP BY name)
        SELECT name, least + least(floor((value - least) / width), 11) * width AS low,
               least + least(floor((value - least) / width), 11) * width + width AS high,
               count(*) AS nodes
        FROM each JOIN edge USING (name) WHERE value IS NOT NULL GROUP BY ALL
        ORDER BY name, low""",
}
"""SQL of each distribution. Bins are [low, high)."""


MOST_POINTS = 400
"""Maximum number of points of a training curve on the page; longer curves are thinned."""


def distributions(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of each query in `DISTRIBUTIONS`.

    Raises:
        StorageError: If the run's manifest cannot be read, or a part is missing or damaged.
    """
    with connect(run) as connection:
        return {name: rows_of(connection, sql) for name, sql in DISTRIBUTIONS.items()}


def yields(run: Path) -> list[dict[str, Any]]:
    """Returns the run's yield, from questions to pairs: `name` and `n` of each."""
    sql = """
        SELECT (SELECT count(*) FROM questions) AS questions,
               (SELECT count(DISTINCT tree_id) FROM trees) AS trees,
               (SELECT count(*) FROM trees WHERE depth > 0) AS steps,
               (SELECT count(*) FROM trees WHERE terminal) AS "finished trajectories",
               (SELECT count(*) FROM pairs) AS pairs,
               (SELECT count(DISTINCT question_id) FROM pairs) AS "questions with a pair"
    """
    with connect(run) as connection:
        (row,) = rows_of(connection, sql)
    return [{"name": name, "n": n} for name, n in row.items()]


def dropped(manifest: Manifest) -> list[dict[str, Any]]:
    """Returns the events counted while the trees were grown, such as dropped pairs: `reason` and
    `n`.
    """
    counts: Counter[str] = Counter()
    for part in manifest.of("trees"):
        counts.update(part.counts)
    return [{"reason": reason, "n": n} for reason, n in counts.most_common()]


def failures(run: Path) -> list[dict[str, Any]]:
    """Returns the questions that failed while the trees were grown."""
    rows = table_to_records(read_parts(run, "failures"), Failure)
    return [row.model_dump(include={"question_id", "stage", "kind", "detail"}) for row in rows]


def trainings(models: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the curve of each training in the run's model folder, by name.

    Values that are not finite are None, because JSON has none.
    """
    curves = {}
    for file in sorted(models.glob(f"*/{METRICS}")):
        lines = [
            {name: x if x is not None and isfinite(x) else None for name, x in line.items()}
            for line in read_metrics(file.parent)
        ]
        step = max(1, -(-len(lines) // MOST_POINTS))
        curves[file.parent.name] = [*lines[::step], *lines[-1:]] if step > 1 else lines
    return curves


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Returns each evaluation of the run: a row per policy, and differences in EM.

    Intervals are 95 %: Wilson's for a policy's EM; the differences are those of `branchwise eval`.
    Policies whose evaluation has not finished are left out.
    """
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    # A policy has predictions, failures, or both.
    tables = {part.table.rpartition("/")[0] for part in load_manifest(run).parts}
    for folder in sorted(tables):
        match folder.split("/"):
            case ["eval", policy, name]:
                file = run / "eval" / policy / name / "metrics.json"
                if file.is_file():
                    metrics = json.loads(file.read_text(encoding="utf-8"))
                    by_name[name].append(as_object(metrics))
    return [
        {
            "name": name,
            "rows": [_row(metrics) for metrics in policies],
            "differences": [
                {"policy": metrics["policy"], **difference}
                for metrics in policies
                for difference in metrics["differences"]
            ],
        }
        for name, policies in by_name.items()
    ]


def _row(metrics: Mapping[str, Any]) -> dict[str, Any]:
    shown = ("policy", "n", "failed", "em", "f1", "cover_em", "searches", "steps", "invalid")
    em = metrics["em"]
    low, high = wilson(em, metrics["answerable"]) if em is not None else (None, None)
    return {**{key: metrics[key] for key in shown}, "low": low, "high": high}
