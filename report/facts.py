"""Facts about a run for its report: counts, distributions, curves and evaluations.

DuckDB counts distributions over the committed parts, so even a million pairs are never held in
memory.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from analysis.significance import paired_bootstrap, wilson
from base.plain_json import as_object
from storage.manifest import Manifest, load_manifest
from storage.parts import question_ids, read_parts
from storage.records import Failure
from storage.schemas import table_to_records
from storage.views import connect, rows_of
from training.curves import METRICS, read_metrics

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


@dataclass(frozen=True, slots=True)
class Scores:
    """A policy's EM by question (source and id), and the ids of the questions that failed."""

    em: Mapping[str, float]
    failed: Set[str]

    def of(self, question: str) -> float | None:
        """Returns the EM of a question, 0 if it failed; None if the policy was not asked it."""
        failed = question.rpartition(_UNIT)[2] in self.failed
        return self.em.get(question, 0.0 if failed else None)


_UNIT = "\x1f"
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
    """Returns the curve of each training in the run's model folder, by name."""
    found = {}
    for file in sorted(models.glob(f"*/{METRICS}")):
        lines = read_metrics(file.parent)
        step = max(1, -(-len(lines) // MOST_POINTS))
        found[file.parent.name] = [*lines[::step], *lines[-1:]] if step > 1 else lines
    return found


def evaluations(run: Path, seed: int) -> list[dict[str, Any]]:
    """Returns each evaluation of the run: a row per policy, and differences in EM.

    Intervals are 95 %: Wilson's for a policy's EM, a paired bootstrap for a difference over the
    questions that both were asked. A question that failed counts as wrong, as in the tables of
    `branchwise eval`. Policies whose evaluation has not finished are left out.
    """
    found: dict[str, dict[str, Scores]] = {}
    for table in sorted({part.table for part in load_manifest(run).parts}):
        match table.split("/"):
            case ["eval", policy, name, "predictions"] if _metrics(run, name, policy).is_file():
                failed = question_ids(run, f"eval/{policy}/{name}/failures")
                found.setdefault(name, {})[policy] = Scores(_em_by_question(run, table), failed)
    return [
        {
            "name": name,
            "rows": [_policy(run, name, policy) for policy in scores],
            "differences": list(differences(scores, seed)),
        }
        for name, scores in found.items()
    ]


def _em_by_question(run: Path, table: str) -> dict[str, float]:
    rows = read_parts(run, table, ["source", "question_id", "em"]).to_pylist()
    return {
        f"{row['source']}{_UNIT}{row['question_id']}": row["em"]
        for row in rows
        if row["em"] is not None
    }


def _metrics(run: Path, name: str, policy: str) -> Path:
    return run / "eval" / policy / name / "metrics.json"


def _policy(run: Path, name: str, policy: str) -> dict[str, Any]:
    row = as_object(json.loads(_metrics(run, name, policy).read_text(encoding="utf-8")))
    kept = ("policy", "n", "failed", "em", "f1", "cover_em", "searches", "steps", "invalid")
    low, high = wilson(row["em"], row["answerable"]) if row["em"] is not None else (None, None)
    return {**{key: row[key] for key in kept}, "low": low, "high": high}


def differences(scores: Mapping[str, Scores], seed: int) -> Iterator[dict[str, Any]]:
    """Yields the difference in EM of any two policies, over questions that both were asked."""
    for (baseline, before), (policy, after) in combinations(scores.items(), 2):
        both = ((before.of(one), after.of(one)) for one in sorted({*before.em, *after.em}))
        shared = [(b, a) for b, a in both if b is not None and a is not None]
        shared += [(0.0, 0.0)] * len(before.failed & after.failed)
        if shared:
            found = paired_bootstrap([b for b, _ in shared], [a for _, a in shared], seed=seed)
            yield {
                "policy": policy,
                "baseline": baseline,
                "mean": found.mean,
                "low": found.low,
                "high": found.high,
            }
