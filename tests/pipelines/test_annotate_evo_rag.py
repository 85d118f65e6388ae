"""EVO-RAG trees in all stages: annotate, stop, resume, relabel, verify and diagnose."""

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from evo_world import EVO, evo_policy, words_alike
from fake_endpoint import FakeEndpoint
from loopback import serving
from stored_rows import nodes_of, pairs_of
from tiny_dataset import QUESTIONS, policy, recipe

from branchwise.pipelines.train_rm.stage import build_comparisons
from branchwise.rewards.settings import REWARDS
from branchwise.runs.folder import existing_run
from branchwise.runs.relabelling import with_label_settings
from branchwise.training.settings import RewardModelSettings
from branchwise.types import Pair, TreeNode

GROWTHS = {
    "chains": {"kind": "chains", "iterations": 6, "branches": 2},
    "playout": {"evaluator": "playout", "iterations": 16, "max_children": 3, "normalise": True},
}


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(evo_policy, models=("policy", "verifier")) as served:
        yield served


@pytest.fixture(autouse=True)
def similarity(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the encoder, which takes seconds to load."""
    monkeypatch.setattr("branchwise.rewards.evo_rag.scheme.query_similarity", lambda: words_alike)


def evo_recipe(folder: Path, base_url: str, growth: str, **changes: Any) -> Path:
    """Writes the tiny recipe with gold documents; the last question has no answer."""
    served = {"engine": "openai", "model": "verifier", "base_url": base_url}
    blocks = {**EVO, "mcts": GROWTHS[growth], "verifier": served, **changes}
    config = recipe(folder, base_url, **blocks)
    country = {"Paris": "france", "Tokyo": "japan", "Yen": "japan"}
    rows: list[dict[str, Any]] = [
        {**row, "supporting_ids": [country[row["answers"][0]]]} for row in QUESTIONS
    ]
    rows[-1] = {**QUESTIONS[-1], "answers": [], "answerable": False}
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "questions.jsonl").write_text(lines)
    return config


def verifier_verdicts(endpoint: FakeEndpoint) -> set[bool]:
    """Returns whether the verifier replied yes, as a set over all of its calls."""
    asked = [r for r in endpoint.requests if r["model"] == "verifier"]
    assert asked
    return {evo_policy(request) == "yes" for request in asked}


@pytest.mark.parametrize("growth", GROWTHS)
def test_a_stopped_run_resumes_to_the_same_trees_and_a_replay_rebuilds_them(
    growth: str, tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config, run, whole = evo_recipe(tmp_path, endpoint.base_url, growth), *(
        tmp_path / name for name in ("run", "whole")
    )  # fmt: skip
    assert branchwise("annotate", config, whole) == 0
    made = len(endpoint.requests)
    assert branchwise("annotate", config, run, "--set", "limits.max_tokens=1000") == 3
    assert branchwise("annotate", config, run) == 0
    assert len(endpoint.requests) == 2 * made, "a stored call was repeated"
    nodes = nodes_of(run)
    assert nodes == nodes_of(whole)
    assert {n.question_id for n in nodes} == {q["id"] for q in QUESTIONS}, (
        "unanswerable questions are annotated, too"
    )
    verdicts = {n.verdict for n in nodes if n.action == "refuse"} - {None}
    assert verdicts == verifier_verdicts(endpoint), "which verdicts occur depends on the port"
    assert pairs_of(run)
    noted = json.loads((run / "provenance.json").read_text())["inputs"]
    assert {"verifier", "verifier_prompts", "query_encoder"} <= set(noted), (
        "inputs that decide rewards are missing"
    )
    card = (run / "README.md").read_text()
    assert "Labels: EVO-RAG returns, `schedule: time-dynamic`, `stage: discovery`" in card
    assert "SPRE" not in card
    for part in (run / "trees").glob("*.parquet"):
        part.unlink()
    assert branchwise("verify", config, run) == 1
    assert branchwise("annotate", config, run, "--replay") == 0
    assert nodes_of(run) == nodes
    assert len(endpoint.requests) == 2 * made


def test_the_same_trees_can_be_relabelled_under_any_schedule(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config, run = evo_recipe(tmp_path, endpoint.base_url, "chains"), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    made, grown = len(endpoint.requests), nodes_of(run)

    def relabelled(label: str, *settings: str) -> tuple[list[TreeNode], list[Pair]]:
        more = [word for setting in settings for word in ("--set", setting)]
        assert branchwise("relabel", config, run, "--label", label, *more) == 0
        labels, pairs = f"relabelled/{label}/labels", f"relabelled/{label}/pairs"
        return nodes_of(run, labels), pairs_of(run, pairs)

    assert relabelled("same") == (grown, pairs_of(run))
    two_stage, _ = relabelled("two-stage", "rewards.schedule=two-stage")
    assert [n.components for n in two_stage] == [n.components for n in grown]
    assert [n.reward for n in two_stage] != [n.reward for n in grown]
    # With constant weights, a reward is the weighted sum of returns. Values: `Start` in table 1.
    start = dict(zip(REWARDS, (2.0, 1.5, 0.1, 0.3, 0.5, 0.02, 0.05), strict=True))
    for node in two_stage:
        parts = {c.name: c.value for c in node.components}
        if node.reward is not None:
            total = sum(w * (parts[f"{name}_return"] or 0.0) for name, w in start.items())
            assert node.reward == pytest.approx(total, abs=1e-5)
    answers, _ = relabelled("answers", "rewards.schedule=answer-only")
    assert {n.reward for n in answers if n.terminal and n.reward is not None} <= {0.0, 1.0}
    assert relabelled("none", "rewards.schedule=none")[1] == []
    steps, _ = relabelled("steps", "rewards.components=[step]", "rewards.schedule=two-stage")
    finished = [n for n in steps if n.terminal and n.reward is not None]
    assert [n.reward for n in finished] == pytest.approx([-0.02] * len(finished))
    assert len(endpoint.requests) == made


@pytest.fixture
def refusing_endpoint() -> Iterator[FakeEndpoint]:
    """Endpoint whose policy refuses the unanswerable question after one of two searches.

    The verifier finds the evidence of the first search sufficient, and that of the second not.
    """
    queries = cycle(("castle", "Euro"))

    def policy_of(request: dict[str, Any]) -> str:
        user = request["messages"][-1]["content"]
        if QUESTIONS[-1]["question"] not in user:
            return evo_policy(request)
        if "suffice?" in user:
            return "yes" if "castle" in user else "no"
        return "<refuse/>" if "Search:" in user else f"<search>{next(queries)}</search>"

    with serving(policy_of, models=("policy", "verifier")) as served:
        yield served


def test_without_a_verifier_refusals_are_judged_by_the_gold_answers(
    tmp_path: Path, refusing_endpoint: FakeEndpoint
) -> None:
    endpoint = refusing_endpoint
    config, run = evo_recipe(tmp_path, endpoint.base_url, "chains"), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    made = len(endpoint.requests)
    more = ("--label", "gold", "--set", "verifier=null", "--set", "pairs.min_gap=0.05")
    assert branchwise("relabel", config, run, *more) == 0
    assert branchwise("relabel", config, run, "--label", "same", *more[4:]) == 0
    unanswerable = QUESTIONS[-1]["id"]

    def refused(label: str) -> set[float | None]:
        """Returns the component `refusal` of the unanswerable question's later refusals."""
        return {
            part.value
            for node in nodes_of(run, f"relabelled/{label}/labels")
            for part in node.components
            if node.question_id == unanswerable and node.action == "refuse" and node.depth > 1
            and part.name == "refusal"
        }  # fmt: skip

    assert refused("gold") == {1.0}, "no evidence suffices if the question has no answer"
    assert refused("same") == {1.0, -1.0}
    digests = [
        {pair.label_digest for pair in pairs_of(run, f"relabelled/{label}/pairs")}
        for label in ("gold", "same")
    ]
    assert digests[0].isdisjoint(digests[1])
    settings, grown = RewardModelSettings(min_gap=0.05), existing_run(run)
    without = grown.recipe.model_copy(update={"verifier": None})
    for label, rewards in (("gold", without), ("same", grown.recipe)):
        material, _ = build_comparisons(
            grown, with_label_settings(grown, rewards, ("rewards",)), settings
        )
        gaps = sorted(pair.total for pair in material.comparisons)
        told = sorted(pair.reward_gap for pair in pairs_of(run, f"relabelled/{label}/pairs"))
        assert gaps == pytest.approx(told, abs=1e-5), "the same gaps as those of relabel"
    assert len(endpoint.requests) == made


def test_the_gap_of_a_pair_uses_components_known_on_both_sides(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config, run = evo_recipe(tmp_path, endpoint.base_url, "chains"), tmp_path / "run"
    still = ("--set", "rewards.schedule=two-stage", "--set", "pairs.min_gap=0.05")
    assert branchwise("annotate", config, run, *still) == 0
    start = dict(zip(REWARDS, (2.0, 1.5, 0.1, 0.3, 0.5, 0.02, 0.05), strict=True))
    partly_unknown = 0
    for pair in pairs_of(run):
        sides = (pair.chosen_components, pair.rejected_components)
        one, other = ({c.name: c.value for c in side if c.value is not None} for side in sides)
        known = [name for name in REWARDS if f"{name}_return" in one.keys() & other.keys()]
        difference = [start[n] * (one[f"{n}_return"] - other[f"{n}_return"]) for n in known]
        assert pair.reward_gap == pytest.approx(sum(difference), abs=1e-5)
        assert pair.reward_gap >= 0.05
        partly_unknown += len(known) < len(REWARDS)
    assert partly_unknown, "the unanswerable question has no gold document"


def test_diagnose_does_not_compare_returns_with_fresh_rollouts(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config, run = evo_recipe(tmp_path, endpoint.base_url, "chains"), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    made = len(endpoint.requests)
    assert branchwise("diagnose", config, run) == 0
    assert len(endpoint.requests) == made
    found = json.loads((run / "diagnosis.json").read_text())
    told = {one["what"]: (one["figure"], one["advice"]) for one in found["findings"]}
    assert told["label survival"][0] == "not checked"
    assert "earn different rewards" in told["silent questions"][1]
    # Under ReasonRAG's labels, diagnose does draw fresh rollouts of the same trees.
    spre = (
        "--set",
        "rewards={scheme: spre}",
        "--set",
        "verifier=null",
        "--set",
        "pairs.min_gap=0.01",
    )
    assert branchwise("relabel", config, run, "--label", "spre", *spre) == 0
    assert branchwise("diagnose", config, run, "--label", "spre", "--sample", "2") == 0
    assert len(endpoint.requests) > made


def test_trees_of_another_protocol_cannot_be_relabelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with serving(policy) as served:
        assert branchwise("annotate", recipe(tmp_path, served.base_url), run) == 0
        evo = evo_recipe(tmp_path, served.base_url, "chains")
    assert branchwise("relabel", evo, run, "--label", "evo") == 2
    assert "agent.protocol is `reasonrag`" in capsys.readouterr().out
