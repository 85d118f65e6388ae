"""The walk over stored trees: a part at a time, whatever the parts are."""

import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from loopback import serving
from tiny_dataset import policy, recipe

from base.errors import StorageError
from pipelines.cli import parser, run_stage
from pipelines.train_sft import right_steps
from runs.annotation import stored_trees as walk
from runs.annotation.stored_trees import pairs_of, stored_trees
from runs.folder import Run, existing_run
from storage.manifest import load_manifest, remove_parts
from storage.records import TreeNode
from storage.schemas import table_to_records


def branchwise(stage: str, run: Path, *more: object) -> int:
    return run_stage(parser().parse_args([stage, "--run", str(run), *map(str, more)]))


def knowing(request: dict[str, Any]) -> str:
    """Answers one question rightly at once, so that a trajectory is right whatever the seeds."""
    if "Which city governs the country of Lyon" in request["messages"][-1]["content"]:
        return "<answer>Paris</answer>"
    return policy(request)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same trees in parts of two questions each, and in a single part."""
    folder = tmp_path_factory.mktemp("runs")
    found = {size: folder / f"parts-of-{size}" for size in (2, 100)}
    with pytest.MonkeyPatch.context() as patch, serving(knowing) as endpoint:
        patch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
        patch.setenv("OPENAI_API_KEY", "test-key")
        config = recipe(folder, endpoint.base_url)
        for size, run in found.items():
            patch.setattr("runs.annotation.commit.QUESTIONS_A_PART", size)
            assert branchwise("annotate", run, "--config", config) == 0
            assert branchwise("relabel", run, "--label", "all", "--set", "pairs.min_gap=0") == 0
    return found


@pytest.fixture
def run(runs: dict[int, Path]) -> Run:
    return existing_run(runs[2])


def test_no_part_is_in_memory_when_the_next_one_is_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[TreeNode]] = []
    alive: list[int] = []

    def watched(table: pa.Table, cls: type[TreeNode]) -> list[TreeNode]:
        alive.append(sum(node() is not None for node in made))
        nodes = table_to_records(table, cls)
        made.extend(map(weakref.ref, nodes))
        return nodes

    monkeypatch.setattr(walk, "table_to_records", watched)
    trees = 0
    for tree in stored_trees(run):
        assert len(tree.states) == len(tree.nodes)
        trees += 1
        del tree  # The loop variable would keep the last tree of a part.
    assert (alive, trees) == ([0, 0, 0], 6)
    assert len(made) > trees, "trees of more than a root"


def test_trees_come_whole_by_part_and_by_id(run: Run) -> None:
    trees = list(stored_trees(run))
    assert [tree.part for tree in trees] == [0, 0, 1, 1, 2, 2]
    assert [(t.part, t.id) for t in trees] == sorted((t.part, t.id) for t in trees)
    for tree in trees:
        assert [node.node_id for node in tree.nodes] == list(range(len(tree.nodes)))
        assert {node.question_id for node in tree.nodes} == {tree.question.id}
        assert [len(state.steps) for state in tree.states] == [node.depth for node in tree.nodes]
        assert {state.question for state in tree.states} == {tree.question.question}
    wanted = {trees[1].id, trees[4].id}
    assert [tree.id for tree in stored_trees(run, only=wanted)] == [trees[1].id, trees[4].id]


def test_who_looks_at_nodes_alone_needs_no_question(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(folder: Path) -> None:
        raise StorageError(f"{folder}: damaged")

    monkeypatch.setattr(walk, "stored_questions", damaged)
    first, *_ = stored_trees(run)
    assert first.nodes
    with pytest.raises(StorageError, match="damaged"):
        _ = first.question


def test_parts_decide_neither_pairs_nor_steps(runs: dict[int, Path]) -> None:
    many, one = existing_run(runs[2]), existing_run(runs[100])
    assert len(load_manifest(many.folder).of("relabelled/all/pairs")) == 3
    assert len(load_manifest(one.folder).of("relabelled/all/pairs")) == 1
    pairs = pairs_of(many, "relabelled/all/pairs")
    assert len({pair.tree_id for pair in pairs}) > 3
    assert pairs == pairs_of(one, "relabelled/all/pairs")
    assert right_steps(many) == right_steps(one)


def test_a_relabelling_keeps_no_part_of_an_older_one(run: Run) -> None:
    labels = "relabelled/twice/labels"
    assert branchwise("relabel", run.folder, "--label", "twice") == 0
    assert [part.path[-13:] for part in load_manifest(run.folder).of(labels)] == [
        "00000.parquet", "00001.parquet", "00002.parquet",
    ]  # fmt: skip
    before = load_manifest(run.folder)
    gone = [part for part in before.of("trees") if part.path.endswith("00001.parquet")]
    remove_parts(run.folder, gone)
    try:
        assert branchwise("relabel", run.folder, "--label", "twice") == 0
        assert sum(part.questions for part in load_manifest(run.folder).of(labels)) == 4
    finally:
        run.commit(gone)
