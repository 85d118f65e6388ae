"""The study `search`: two runs with the same budget, evaluated and trained in the same way."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_study_runner import Pretended, pretended
from sample_records import a_call, a_node, a_pair, a_prediction

from branchwise.analysis.survival import Fresh
from branchwise.runs.folder import Run, open_run
from branchwise.runs.fresh_rollouts import FreshRolloutResult
from branchwise.runs.studies.study_runner import with_sibling_run
from branchwise.storage.manifest import add_parts
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import rows_to_table, schema_of
from branchwise.studies import arms, fresh_rollouts, search
from branchwise.types import FreshRollouts, Record, Rollout

KINDS = ("tree", "chains")


def write_run(runner: Pretended, kind: str) -> None:
    """Writes a run with two trees of three nodes and one pair of each."""
    run = open_run(with_sibling_run(runner, kind).context.run, runner.recipe, {})
    trees = [
        a_node(tree_id=tree, question_id=tree, node_id=n) for tree in ("t1", "t2") for n in range(3)
    ]
    pairs = [a_pair(tree_id=t, question_id=t, pair_id=f"p-{t}") for t in ("t1", "t2")]
    tables: dict[str, list[Any]] = {"trees": trees, "pairs": pairs}
    for table, rows in tables.items():
        records: list[Record] = rows
        content = rows_to_table(records, schema_of(table), run.id)
        add_parts(run.folder, [write_part(run.folder, table, content, 0)])
    asyncio.run(store_calls(run))


async def store_calls(run: Run) -> None:
    """Stores calls per tree: 30 tokens of the search, and 200 of other stages."""
    spent = {"tree/0": 10, "rollout/0/1": 20, "fresh/t1/1": 100, "eval/dpo": 100}
    with run.open_ledger() as opened:
        for tree in ("t1", "t2"):
            for path, tokens in spent.items():
                key = f"{tree} {path}"
                call = a_call(key=key, question_id=tree, path=path, output_tokens=tokens)
                await opened.put(call)


def ended(answer: str) -> Rollout:
    right = float(answer == "Paris")
    return Rollout(
        draw=0, answer=answer, em=right, f1=right, steps=2, forced=False, tokens=5, stop_reason=""
    )


def fresh(answers: dict[int, str]) -> Fresh:
    """Returns one rollout of every given node of both trees."""
    return {
        (tree, node): FreshRollouts(
            tree_id=tree,
            question_id=tree,
            source="atlas",
            node_id=node,
            seed=0,
            temperature=0.8,
            rollouts=(ended(answer),),
        )
        for tree in ("t1", "t2")
        for node, answer in answers.items()
    }


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    def rolled(call: Any, run: Any, *_: object) -> FreshRolloutResult:
        right = 1 if run.folder.name.endswith("tree") else 2
        return FreshRolloutResult(dict(fresh({right: "Paris", 3 - right: "Rome"})))

    monkeypatch.setattr(fresh_rollouts, "roll_fresh", rolled)
    rows = [a_prediction(question_id=f"q{n}", em=float(n % 2)) for n in range(20)]
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)
    found = pretended("search", tmp_path / "search")
    for kind in KINDS:
        write_run(found, kind)
    return found


def test_searches_are_counted_and_checked_with_fresh_rollouts(runner: Pretended) -> None:
    search.search(runner)
    head, *rows = (runner.folder / "search-searches.csv").read_text().splitlines()
    assert head.startswith("search,questions,tokens per question,pairs,")
    tree, chains = (row.split(",") for row in rows)
    assert tree[:6] == ["tree", "2", "30", "2", "2", "2"]
    assert tree[6].strip('"').startswith("100.0 [")
    assert chains[-2:] == ["100.0", "0.0"], "all pairs should be reversed"
    text = (runner.folder / "search.md").read_text()
    assert "dpo-tree − dpo-chains (primary)" in text
    for kind in KINDS:
        run = f"{runner.context.run}-{kind}"
        assert f"fresh rollouts, 8 per side, of 2 pairs of {run} | 1 |" in text
    trained = (runner.folder / "search-arms.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in trained] == ["warm-start", "dpo-tree", "dpo-chains"]
    assert (runner.folder / "search.svg").exists()
