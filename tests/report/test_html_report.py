"""HTML report of a run: its content is complete, and text of models is escaped."""

import base64
import gzip
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from report_run import HOSTILE, a_run_with_report
from sample_records import a_node
from stored_rows import run_sql
from tiny_dataset import QUESTIONS

from branchwise.report.facts import distributions, trainings
from branchwise.storage.manifest import add_parts, load_manifest
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import TREES, rows_to_table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run_with_report(tmp_path_factory.mktemp("report"))


def page_of(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def json_of(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def blobs_of(page: str, kind: str) -> list[Any]:
    found = re.findall(rf'<script type="text/plain" id="{kind}-\d+">(.*?)</script>', page)
    return [json.loads(gzip.decompress(base64.b64decode(blob))) for blob in found]


def test_values_of_a_curve_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "dpo").mkdir()
    curve = '{"step": 1, "loss": 0.5, "kl": NaN}\n{"step": 2, "loss": Infinity, "kl": null}\n'
    (tmp_path / "dpo" / "metrics.jsonl").write_text(curve)
    assert trainings(tmp_path)["dpo"] == [
        {"step": 1, "loss": 0.5, "kl": None},
        {"step": 2, "loss": None, "kl": None},
    ]


def test_every_tree_and_pair_is_in_the_report(run: Path) -> None:
    page, manifest = page_of(run), load_manifest(run)
    index = json_of(page, "tree-index")
    assert len(index) == len(QUESTIONS)
    trees = [tree for blob in blobs_of(page, "trees") for tree in blob]
    assert sum(len(tree["nodes"]) for tree in trees) == manifest.rows("trees")
    assert sum(len(tree["pairs"]) for tree in trees) == manifest.rows("pairs")
    assert len(json_of(page, "pair-index")) == manifest.rows("pairs")
    ((right,),) = run_sql(
        run,
        "select count(distinct question_id) from trees "
        "where em = 1 or list_max([r.em for r in rollouts]) = 1",
    ).rows
    assert sum(row["right"] for row in index) == right


def test_a_tree_keeps_rewards_of_zero_and_the_text_of_passages(run: Path) -> None:
    trees = [tree for blob in blobs_of(page_of(run), "trees") for tree in blob]
    nodes = [node for tree in trees for node in tree["nodes"]]
    assert any(node.get("reward") == 0 for node in nodes)
    assert all({"node_id", "parent_id", "depth"} <= node.keys() for node in nodes)
    cited = {one["id"] for node in nodes for one in node.get("passages", ())}
    assert cited == {passage for tree in trees for passage in tree["passages"]} != set()


def test_distributions_count_all_steps_and_pairs(run: Path) -> None:
    facts = json_of(page_of(run), "facts")
    yields = {row["name"]: row["n"] for row in facts["yields"]}
    shown = facts["distributions"]
    assert sum(row["nodes"] for row in shown["depth"]) == yields["steps"]
    for name in ("actions", "gaps"):
        assert sum(row["pairs"] for row in shown[name]) == yields["pairs"] > 0
    assert sum(row["texts"] for row in shown["lengths"]) == 2 * yields["pairs"]
    assert all(row["low"] < row["high"] for row in shown["gaps"])


def test_text_of_models_and_users_is_escaped(run: Path) -> None:
    page = page_of(run)
    assert HOSTILE not in page
    assert any(HOSTILE in row["question"] for row in json_of(page, "tree-index"))
    assert "Content-Security-Policy" in page
    assert not re.search(
        r"""(?:src|href)=["']?(?:https?:)?//""", unescape(page.split("<script")[0])
    )


def test_judge_scores_are_compared_with_answers_below_the_step(tmp_path: Path) -> None:
    judged = [(1, 0, 0.25, None), (2, 1, 0.75, None), (5, 0, 0.75, None)]
    ended = [(3, 1, None, 1.0), (4, 2, None, 0.0)]
    nodes = [a_node(node_id=0, parent_id=-1, judge_score=None, em=None, rollouts=())]
    nodes += [
        a_node(node_id=n, parent_id=parent, judge_score=score, em=em, rollouts=())
        for n, parent, score, em in (*judged, *ended)
    ]
    add_parts(tmp_path, [write_part(tmp_path, "trees", rows_to_table(nodes, TREES, "r"), 0)])
    rows = distributions(tmp_path)["judge"]
    # Below step 1: one right and one wrong answer; below step 2: a wrong one; below 5: none.
    found = [(round(row["low"], 1), row["nodes"], row["em"]) for row in rows]
    assert found == [(0.2, 1, 0.5), (0.7, 2, 0)]
