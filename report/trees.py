"""The trees and a sample of the pairs of a run, packed for the browser.

A report holds thousands of trees, but a reader opens only a few. So they are stored in blobs of
compressed JSON, which the page unpacks when a tree is opened; an index lists all questions.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.manifest import load_manifest
from storage.parts import read_part, read_parts
from storage.records import Passage
from storage.views import connect, rows_of

MOST_PAIRS = 5_000
"""Maximum number of pairs in a report; a hash of their ids selects them."""

_PAIRS_PER_BLOB = 250
_PASSAGE_CHARACTERS = 800
"""Maximum characters of a passage in a report; longer ones would dominate its size."""

_NODE = (
    "tree_id", "question_id", "node_id", "parent_id", "depth", "stage", "action", "text",
    "content", "passages", "terminal", "forced", "cut", "visits", "value", "judge_score",
    "judge_text", "rollouts", "n_outcomes", "iteration", "verdict", "em", "f1", "reward",
    "components", "output_tokens",
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
        content = json.dumps(rows, ensure_ascii=False, separators=(",", ":"), default=str)
        packed = gzip.compress(content.encode("utf-8", "replace"), compresslevel=6, mtime=0)
        self.blobs.append(base64.b64encode(packed).decode("ascii"))


def trees_of(run: Path, passages: Mapping[str, Passage]) -> Blobs:
    """Packs all trees of a run, one blob per part, in the order of the parts.

    Args:
        passages: The corpus by id. Passages that it lacks are shown by title only.
    """
    packed, pairs = Blobs(), _pairs_by_tree(run)
    questions = _questions(run)
    for part in load_manifest(run).of("trees"):
        rows = read_part(run, part, _NODE).to_pylist()
        blob: list[dict[str, Any]] = []
        for tree_id, nodes in _grouped(rows):
            question = questions[nodes[0]["question_id"]]
            own = pairs.get(tree_id, [])
            place = {"blob": len(packed.blobs), "place": len(blob)}
            packed.index.append({**_listed(question, nodes, own), **place, "tree": tree_id})
            blob.append(_tree(question, nodes, own, passages))
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
            listed = ("pair_id", "tree_id", "question", "depth", "chosen_action", "reward_gap")
            packed.index.append(
                {**{key: row[key] for key in listed}, "blob": len(packed.blobs), "place": place}
            )
        packed.add(blob)
    return packed


def _questions(run: Path) -> dict[str, dict[str, Any]]:
    kept = ["question_id", "question", "answers", "answerable", "type", "hops"]
    return {row["question_id"]: row for row in read_parts(run, "questions", kept).to_pylist()}


def _pairs_by_tree(run: Path) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in read_parts(run, "pairs", _PAIR).to_pylist():
        found[row.pop("tree_id")].append(row)
    return found


def _grouped(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    trees: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        trees.setdefault(row["tree_id"], []).append(row)
    for tree_id, nodes in trees.items():
        yield tree_id, sorted(nodes, key=lambda node: node["node_id"])


def _listed(
    question: Mapping[str, Any], nodes: list[dict[str, Any]], pairs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "question": question["question"],
        "answers": question["answers"],
        "answerable": question["answerable"],
        "type": question["type"],
        "hops": question["hops"],
        "nodes": len(nodes) - 1,
        "pairs": len(pairs),
        "right": any(_is_right(node) for node in nodes),
        "searched": any(node["terminal"] or node["rollouts"] for node in nodes),
    }


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
            one: passages[one].text[:_PASSAGE_CHARACTERS]
            + ("…" if len(passages[one].text) > _PASSAGE_CHARACTERS else "")
            for one in sorted(cited)
            if one in passages
        },
    }


def _node(row: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in row.items()
        if value is not None and value is not False and value not in ("", [])
    }
    del kept["tree_id"], kept["question_id"]
    if rollouts := kept.get("rollouts"):
        kept["rollouts"] = [{key: one[key] for key in _ROLLOUT} for one in rollouts]
    return kept
