"""The trees and a sample of the pairs of a run, packed for the browser.

A report holds thousands of trees, but a reader opens only a few. So they are stored in blobs of
compressed JSON, which the page unpacks when a tree is opened; an index lists all questions.
"""

import base64
import gzip
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from branchwise.base import dump_json
from branchwise.storage import connect, load_manifest, read_part, read_parts, rows_of
from branchwise.types import Passage

MOST_PAIRS = 5_000
"""Maximum number of pairs in a report; a hash of their ids selects them."""

_PAIRS_PER_BLOB = 250
_PASSAGE_CHARACTERS = 800
"""Maximum characters of a passage in a report; longer ones would dominate its size."""

_NODE = (
    "tree_id", "question_id", "node_id", "parent_id", "depth", "stage", "action", "text",
    "content", "passages", "terminal", "forced", "cut", "reasoning", "visits", "value",
    "judge_score", "judge_text", "rollouts", "n_outcomes", "iteration", "verdict", "em", "f1",
    "reward", "components", "output_tokens",
)  # fmt: skip
_PAIR = (
    "tree_id", "pair_id", "parent_node", "chosen_node", "rejected_node", "reward_gap",
)  # fmt: skip
_SHOWN_PAIR = (
    "pair_id", "tree_id", "question_id", "question", "answers", "chosen_node", "rejected_node",
    "depth", "stage", "prompt", "chosen", "rejected", "chosen_action", "rejected_action",
    "chosen_reward", "rejected_reward", "reward_gap", "chosen_outcomes", "rejected_outcomes",
    "chosen_components", "rejected_components",
)  # fmt: skip
_LISTED_PAIR = ("pair_id", "tree_id", "question", "depth", "chosen_action", "reward_gap")
_QUESTION = ("question_id", "question", "answers", "answerable", "type", "hops")
_ROLLOUT = ("answer", "em", "f1", "steps", "forced", "stop_reason")


@dataclass
class Blobs:
    """Packed trees or pairs.

    Attributes:
        index: Entries of the page's list, in order: one row per tree or pair.
        blobs: Base64 of gzipped JSON lists.
    """

    index: list[dict[str, Any]] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds a blob."""
        content = dump_json(rows, compact=True)
        packed = gzip.compress(content.encode("utf-8", "replace"), compresslevel=6, mtime=0)
        self.blobs.append(base64.b64encode(packed).decode("ascii"))


def trees_of(run: Path, passages: Mapping[str, Passage]) -> Blobs:
    """Packs all trees of a run, one blob per part, in the order of the parts.

    Args:
        passages: The corpus by id. Passages that it lacks are shown by title only.
    """
    packed = Blobs()
    questions = {
        row.pop("question_id"): row for row in read_parts(run, "questions", _QUESTION).to_pylist()
    }
    pairs_by_tree = defaultdict(list)
    for row in read_parts(run, "pairs", _PAIR).to_pylist():
        pairs_by_tree[row.pop("tree_id")].append(row)
    for part in load_manifest(run).of("trees"):
        blob: list[dict[str, Any]] = []
        # The nodes of a tree follow each other, in order of `node_id`.
        rows = groupby(read_part(run, part, _NODE).to_pylist(), key=itemgetter("tree_id"))
        for tree_id, group in rows:
            nodes, pairs = list(group), pairs_by_tree[tree_id]
            question = questions[nodes[0]["question_id"]]
            listed = {
                **question,
                "nodes": len(nodes) - 1,
                "pairs": len(pairs),
                "right": any(_is_right(node) for node in nodes),
                "searched": any(node["terminal"] or node["rollouts"] for node in nodes),
            }
            place = {"blob": len(packed.blobs), "place": len(blob)}
            packed.index.append({**listed, **place, "tree": tree_id})
            blob.append(_tree(question, nodes, pairs, passages))
        packed.add(blob)
    return packed


def pairs_of(run: Path) -> Blobs:
    """Packs up to `MOST_PAIRS` pairs of a run."""
    packed = Blobs()
    sql = f"""
        SELECT {", ".join(_SHOWN_PAIR)} FROM pairs
        WHERE pair_id IN (SELECT pair_id FROM pairs ORDER BY hash(pair_id) LIMIT {MOST_PAIRS})
        ORDER BY question_id, parent_node, pair_id
    """
    with connect(run) as connection:
        rows = rows_of(connection, sql)
    for start in range(0, len(rows), _PAIRS_PER_BLOB):
        blob = rows[start : start + _PAIRS_PER_BLOB]
        for place, row in enumerate(blob):
            listed = {key: row[key] for key in _LISTED_PAIR}
            packed.index.append({**listed, "blob": len(packed.blobs), "place": place})
        packed.add(blob)
    return packed


def _is_right(node: Mapping[str, Any]) -> bool:
    return bool(node["em"]) or any(rollout["em"] for rollout in node["rollouts"] or ())


def _tree(
    question: Mapping[str, Any],
    nodes: list[dict[str, Any]],
    pairs: list[dict[str, Any]],
    passages: Mapping[str, Passage],
) -> dict[str, Any]:
    cited = {passage["id"] for node in nodes for passage in node["passages"] or ()}
    return {
        "question": question["question"],
        "answers": question["answers"],
        "nodes": [_node(node) for node in nodes],
        "pairs": pairs,
        "passages": {
            name: passages[name].text[:_PASSAGE_CHARACTERS]
            + ("…" if len(passages[name].text) > _PASSAGE_CHARACTERS else "")
            for name in sorted(cited)
            if name in passages
        },
    }


def _node(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a node without its ids and its empty values."""
    shown = {
        key: value
        for key, value in row.items()
        if key not in ("tree_id", "question_id")
        and value is not None
        and value is not False
        and value not in ("", [])
    }
    if rollouts := shown.get("rollouts"):
        shown["rollouts"] = [{key: rollout[key] for key in _ROLLOUT} for rollout in rollouts]
    return shown
