"""Runs of chains, and searches with a limit on tokens, against a real loopback endpoint."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint
from stored_rows import nodes_of, pairs_of
from tiny_dataset import recipe

from branchwise.types import Pair, TreeNode

CHAINS = {"kind": "chains", "iterations": 12}


pytestmark = pytest.mark.usefixtures("own_cache")


def leaves_below(nodes: list[TreeNode]) -> dict[tuple[str, int], list[TreeNode]]:
    by_id = {(n.tree_id, n.node_id): n for n in nodes}
    found: dict[tuple[str, int], list[TreeNode]] = defaultdict(list)
    for leaf in (n for n in nodes if n.action == "answer"):
        node: TreeNode | None = leaf
        while node is not None:
            found[node.tree_id, node.node_id].append(leaf)
            node = by_id.get((node.tree_id, node.parent_id))
    return found


def test_labels_of_chains_are_computed_from_their_answers(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config, run = recipe(tmp_path, endpoint.base_url, mcts=CHAINS), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    nodes = nodes_of(run)
    assert {n.visits for n in nodes if n.parent_id < 0} == {12}
    assert not any(n.rollouts for n in nodes)
    below = leaves_below(nodes)
    for node in nodes:
        leaves = below[node.tree_id, node.node_id]
        assert node.n_outcomes == len(leaves), "leaves of a prefix tree are distinct outcomes"
        worth = [(leaf.f1 or 0.0) * 0.9**leaf.depth for leaf in leaves]
        assert node.reward == (pytest.approx(sum(worth) / len(worth), abs=1e-6) if worth else None)
    assert pairs_of(run)
    assert "12 independent chains" in (run / "README.md").read_text()
    assert (
        branchwise("relabel", config, run, "--set", "rewards.estimator=tree", "--label", "t") == 0
    )
    for node in nodes_of(run, "relabelled/t/labels"):
        leaves = below[node.tree_id, node.node_id]
        total = sum(leaf.visits * (leaf.f1 or 0.0) * 0.9**leaf.depth for leaf in leaves)
        passes = sum(leaf.visits for leaf in leaves)
        assert node.reward == (pytest.approx(total / passes, abs=1e-6) if leaves else None)


@pytest.mark.parametrize("kind", ["tree", "chains"])
def test_closing_counts_include_searches_stopped_by_max_output_tokens(
    kind: str, tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    mcts: dict[str, Any] = {"kind": kind, "iterations": 50, "max_output_tokens": 60}
    mcts |= {"max_children": 3} if kind == "tree" else {}
    config, run = recipe(tmp_path, endpoint.base_url, mcts=mcts), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    told = capsys.readouterr().out
    counted = next(line for line in told.splitlines() if "mcts.max_output_tokens" in line)
    assert counted.rstrip(" │").split()[-1] == "6"
    assert "until 60 tokens are generated" in told
    assert max(n.visits for n in nodes_of(run)) < 50


def test_a_relabelling_with_shuffled_order_can_be_trained_on(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    shuffle = ("--set", "pairs.order=shuffled", "--label", "shuffled")
    assert branchwise("relabel", config, run, *shuffle) == 0
    earned, shuffled = pairs_of(run), pairs_of(run, "relabelled/shuffled/pairs")
    rewards = {(n.tree_id, n.node_id): n.reward for n in nodes_of(run)}
    for one, other in zip(ordered(earned), ordered(shuffled), strict=True):
        assert {one.chosen_node, one.rejected_node} == {other.chosen_node, other.rejected_node}
        assert other.chosen_reward == rewards[other.tree_id, other.chosen_node]
        assert other.rejected_reward == rewards[other.tree_id, other.rejected_node]
        turned = other.chosen_node != one.chosen_node
        assert other.reward_gap == (-one.reward_gap if turned else one.reward_gap)
        assert (other.chosen, other.rejected) == (
            (one.rejected, one.chosen) if turned else (one.chosen, one.rejected)
        )
        assert (one.pair_id == other.pair_id) == (not turned)
    assert {p.reward_gap > 0 for p in shuffled} == {True, False}
    assert {p.label_digest for p in shuffled}.isdisjoint(p.label_digest for p in earned)
    capsys.readouterr()
    for stage in ("train-dpo", "train-sft"):
        weights = ("--set", "policy.weights=packaged")  # what the endpoint serves
        arguments = ("--label", "shuffled", "--name", "control", "--dry-run", *weights)
        assert branchwise(stage, config, run, *arguments) == 0
        assert "models/run/control" in capsys.readouterr().out
    right = ("--set", "training.sft.examples=right", "--label", "shuffled")
    assert branchwise("train-sft", config, run, *right) == 2
    assert "--label is for training.sft.examples: chosen" in capsys.readouterr().out


def ordered(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda p: (p.tree_id, *sorted((p.chosen_node, p.rejected_node))))
