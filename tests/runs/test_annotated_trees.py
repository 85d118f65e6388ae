"""Stored trees: reading them part by part, and pairs and groups built from them."""

import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from loopback import serving
from tiny_dataset import policy, recipe

from branchwise.agent.protocols import protocol_of
from branchwise.base.errors import StorageError
from branchwise.cli.command_line import parser, run_stage
from branchwise.pipelines.train_grpo.tree_groups import TreeGroups, tree_groups
from branchwise.pipelines.train_sft.stage import right_steps
from branchwise.runs import annotated_trees as walk
from branchwise.runs.annotated_trees import StoredTree, pairs_of, stored_trees
from branchwise.runs.folder import Run, existing_run
from branchwise.storage.manifest import load_manifest, remove_parts
from branchwise.storage.parts import question_ids
from branchwise.storage.schemas import table_to_records
from branchwise.training.grpo.rollouts import PolicyCall, TrainingRollout
from branchwise.training.packing import StepTokens
from branchwise.types import TreeNode
from branchwise.weights.chat_template import target_ids
from branchwise.weights.policies import packaged_gguf, tokenizer_of


def branchwise(stage: str, run: Path, *more: object) -> int:
    return run_stage(parser().parse_args([stage, "--run", str(run), *map(str, more)]))


def knowing(request: dict[str, Any]) -> str:
    """Answers one question correctly in the first call, so some trajectory is always right."""
    if "Which city governs the country of Lyon" in request["messages"][-1]["content"]:
        return "<answer>Paris</answer>"
    return policy(request)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs with the same trees, by the number of questions per part: 2, and 100 (one part)."""
    folder = tmp_path_factory.mktemp("runs")
    found = {size: folder / f"parts-of-{size}" for size in (2, 100)}
    with pytest.MonkeyPatch.context() as patch, serving(knowing) as endpoint:
        patch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
        patch.setenv("OPENAI_API_KEY", "test-key")
        config = recipe(folder, endpoint.base_url)
        for size, run in found.items():
            patch.setattr("branchwise.pipelines.annotate.commit.QUESTIONS_A_PART", size)
            assert branchwise("annotate", run, "--config", config) == 0
            assert branchwise("relabel", run, "--label", "all", "--set", "pairs.min_gap=0") == 0
    return found


@pytest.fixture
def run(runs: dict[int, Path]) -> Run:
    return existing_run(runs[2])


def test_each_part_is_freed_before_the_next_one_is_read(
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
    assert len(made) > trees, "trees should have more nodes than the root"


def test_trees_are_complete_and_ordered_by_part_and_id(run: Run) -> None:
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


def test_questions_are_read_only_if_they_are_used(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(folder: Path) -> None:
        raise StorageError(f"{folder}: damaged")

    monkeypatch.setattr(walk, "stored_questions", damaged)
    first, *_ = stored_trees(run)
    assert first.nodes
    with pytest.raises(StorageError, match="damaged"):
        _ = first.question


def test_pairs_and_steps_do_not_depend_on_the_size_of_parts(runs: dict[int, Path]) -> None:
    many, one = existing_run(runs[2]), existing_run(runs[100])
    assert len(load_manifest(many.folder).of("relabelled/all/labels")) == 3
    assert len(load_manifest(one.folder).of("relabelled/all/labels")) == 1
    for table in ("pairs", "relabelled/all/pairs"):
        pairs = pairs_of(many, table)
        assert len({pair.tree_id for pair in pairs}) > 3
        assert pairs == pairs_of(one, table)
    assert right_steps(many) == right_steps(one)


def test_a_relabelling_replaces_all_parts_of_an_older_one(run: Run) -> None:
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
        assert len(question_ids(run.folder, labels)) == 4
    finally:
        run.commit(gone)


def test_tree_groups_contain_the_labelled_siblings_of_a_state(run: Run) -> None:
    tokenizer = tokenizer_of(packaged_gguf())
    expected = {}
    for tree in stored_trees(run):
        families: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)
        for node in tree.nodes[1:]:
            if node.reward is not None:
                stops = protocol_of(run.recipe.agent).stops
                families[node.parent_id][target_ids(node.text, tokenizer, stops)] = node.reward
        differing = [found for found in families.values() if len(set(found.values())) > 1]
        if differing:
            expected[tree.question.id] = differing
    found = tree_groups(run, "trees", tokenizer)
    assert {
        question.id: [{one.calls[0].tokens.step: one.reward for one in group} for group in groups]
        for question, groups in found
    } == expected
    assert any(len(groups) > 1 for _, groups in found)
    for group in (group for _, groups in found for group in groups):
        assert len({one.calls[0].tokens.prompt for one in group}) == 1


def test_tree_groups_use_the_sampled_tokens_and_reward_of_a_node(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(run: Run, table: str) -> Iterator[StoredTree]:
        for tree in stored_trees(run, table):
            nodes = [node.model_copy(update={"token_ids": (node.node_id,)}) for node in tree.nodes]
            yield replace(tree, nodes=nodes)

    rewards = {(t.question.id, n.node_id): n.reward for t in stored_trees(run) for n in t.nodes}
    monkeypatch.setattr("branchwise.pipelines.train_grpo.tree_groups.stored_trees", sampled)
    found = tree_groups(run, "trees", tokenizer_of(packaged_gguf()))
    steps = [one for _, groups in found for group in groups for one in group]
    for one in steps:
        (node_id,) = one.calls[0].tokens.step
        assert one.reward == rewards[one.question_id, node_id]


def test_tree_groups_add_no_end_of_turn_token_to_a_cut_reply(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(run: Run, table: str) -> Iterator[StoredTree]:
        for tree in stored_trees(run, table):
            nodes = [node.model_copy(update={"cut": True}) for node in tree.nodes]
            yield replace(tree, nodes=nodes)

    monkeypatch.setattr("branchwise.pipelines.train_grpo.tree_groups.stored_trees", cut)
    tokenizer = tokenizer_of(packaged_gguf())
    found = tree_groups(run, "trees", tokenizer)
    steps = [one.calls[0].tokens.step for _, groups in found for group in groups for one in group]
    assert steps
    assert not any(step[-1] == tokenizer.eos_token_id for step in steps)


def test_batches_of_trees_draw_every_question_once_before_repeating_any() -> None:
    def rollout(name: str, reward: float) -> TrainingRollout:
        return TrainingRollout(name, (PolicyCall(StepTokens((1,), (2,))),), reward)

    trees = [[(rollout(name, 1.0), rollout(name, 0.5))] for name in "abcde"]
    source = TreeGroups(trees, batch_questions=2, seed=0)
    batches = [source.collect(number, None) for number in range(5)]
    drawn = [group[0].question_id for batch in batches for group in batch.groups]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == ["a", "b", "c", "d", "e"]
    assert drawn[:5] != drawn[5:], "epochs should differ in their order"
    assert batches[0].metrics.line() == {"rollouts": 4.0, "silent_share": 0.0}
