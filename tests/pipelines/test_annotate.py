"""`annotate` and `relabel` against a real loopback endpoint."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import branchwise
from fake_endpoint import FakeEndpoint, failure
from loopback import serving
from stored_rows import nodes_of, pairs_of, run_sql
from tiny_dataset import policy, recipe

from branchwise.storage.ledger import Ledger
from branchwise.storage.manifest import verify_manifest
from branchwise.storage.parts import question_ids, read_parts
from branchwise.types import Pair, TreeNode

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

pytestmark = pytest.mark.usefixtures("own_cache")


def trees_of(run: Path) -> set[str]:
    return question_ids(run, "trees")


def facts(pairs: list[Pair]) -> list[tuple[Any, ...]]:
    return sorted((p.pair_id, p.question_id, p.chosen_node, p.reward_gap) for p in pairs)


def test_a_run_has_trees_pairs_and_a_data_card(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    nodes = nodes_of(run)
    pairs = pairs_of(run)
    assert {n.question_id for n in nodes} == {"q1", "q2", "q3", "q4", "q5", "q6"}
    assert pairs, "a policy that is sometimes right gives pairs"
    by_id = {(n.tree_id, n.node_id): n for n in nodes}
    for pair in pairs:
        chosen, rejected = (by_id[pair.tree_id, n] for n in (pair.chosen_node, pair.rejected_node))
        assert chosen.parent_id == rejected.parent_id == pair.parent_node
        assert chosen.reward is not None
        assert rejected.reward is not None
        assert chosen.reward - rejected.reward == pytest.approx(pair.reward_gap, abs=1e-6)
        assert pair.chosen[0].content == chosen.text != rejected.text
        assert pair.prompt[-1].content.startswith("Question: ")
    assert verify_manifest(run) == []
    assert run_sql(run, "select count(*) from trees").rows == ((len(nodes),),)
    assert "test-key" not in "".join(
        p.read_text(errors="ignore") for p in run.rglob("*") if p.is_file()
    )
    assert f"{len(pairs)} preference pairs" in (run / "README.md").read_text()


def test_settings_that_an_openai_model_rejects_are_printed_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(body: dict[str, Any]) -> Any:
        return failure(400, "no temperature") if "temperature" in body else policy(body)

    with serving(script) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        assert branchwise("annotate", config, run, "--set", "policy.server=openai") == 1
    told = capsys.readouterr().out
    assert "answered 400: no temperature. It accepts this request with" in told
    assert "`policy.request: {omit: [temperature]}`" in told
    assert not run.exists()


def test_a_rerun_makes_no_new_calls(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    branchwise("annotate", config, run)
    made, before = len(endpoint.requests), facts(pairs_of(run))
    assert branchwise("annotate", config, run) == 0
    assert len(endpoint.requests) == made
    # No row is committed any more, but all calls are in the ledger: a limit stops no replay.
    (run / "manifest.json").unlink()
    assert branchwise("annotate", config, run, "--set", "limits.max_tokens=10") == 0
    assert len(endpoint.requests) == made
    assert facts(pairs_of(run)) == before


def test_a_run_resumed_after_a_limit_gives_the_same_pairs(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config = recipe(tmp_path, endpoint.base_url)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    branchwise("annotate", config, whole)
    made = len(endpoint.requests)
    # All six questions are in flight before the first call is answered.
    assert branchwise("annotate", config, parts, "--set", "limits.max_tokens=10") == 3
    assert len(endpoint.requests) - made <= 6
    with Ledger(parts / "ledger.sqlite") as ledger:
        assert ledger.totals().calls == len(endpoint.requests) - made, "every paid call is stored"
    assert trees_of(parts) == set() == question_ids(parts, "failures")
    assert branchwise("annotate", config, parts) == 0
    assert len(endpoint.requests) == 2 * made
    assert facts(pairs_of(parts)) == facts(pairs_of(whole))


def test_a_resume_in_another_form_of_constraints_is_refused(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, endpoint.base_url)
    run = tmp_path / "run"
    assert branchwise("annotate", config, run, "--set", "limits.max_tokens=400") == 3
    made = len(endpoint.requests)
    endpoint.owned_by = "a gateway"
    assert branchwise("annotate", config, run) == 2
    assert "now takes no constraints, but took" in capsys.readouterr().out
    assert len(endpoint.requests) == made
    endpoint.owned_by = "vllm"
    assert branchwise("annotate", config, run) == 0


def test_relabelling_makes_no_call(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    branchwise("annotate", config, run)
    made = len(endpoint.requests)
    assert branchwise("relabel", config, run, "--label", "same") == 0
    assert facts(pairs_of(run, "relabelled/same/pairs")) == facts(pairs_of(run))
    more = ("--set", "rewards.estimator=rollout", "--set", "rewards.alpha=0.5")
    assert branchwise("relabel", config, run, "--label", "other", *more) == 0
    other = pairs_of(run, "relabelled/other/pairs")
    assert other
    assert facts(other) != facts(pairs_of(run))
    assert len(endpoint.requests) == made


def test_keep_articles_applies_to_search_values_and_labels(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    blocks = {
        "mcts": {"evaluator": "playout", "iterations": 12},
        "rewards": {"alpha": 1.0, "keep_articles": True},
    }
    config, run = recipe(tmp_path, endpoint.base_url, **blocks), tmp_path / "run"
    question = {"id": "q1", "question": "What money do they pay with?", "answers": ["The Yen"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question))
    assert branchwise("annotate", config, run) == 0
    right = [n for n in nodes_of(run) if n.content == "Yen"]
    assert right
    for node in right:
        assert (node.value, node.reward) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    plain = ("--label", "plain", "--set", "rewards.keep_articles=false")
    assert branchwise("relabel", config, run, *plain) == 0
    labels = read_parts(run, "relabelled/plain/labels").to_pylist()
    ids = {node.node_id for node in right}
    assert {one["reward"] for one in labels if one["node_id"] in ids} == {1.0}


def test_published_profile_grows_trees_as_the_published_code_does(tmp_path: Path) -> None:
    """Checks for 64 iterations, undiscounted judge scores, and equal siblings as separate nodes."""

    def reply(request: dict[str, Any]) -> str:
        said, number = request["messages"][-1]["content"], request["seed"] % 3
        if request["model"] == "judge":
            return json.dumps({"critique": "fair", "score": len(said) % 10 / 10})
        if "<evidence>" in said and "<passage>" not in said and number:
            return f"<answer>{('', 'Paris', 'Yen')[number]}</answer>"
        return policy(request)

    profile = yaml.safe_load((CONFIGS / "reasonrag-published.yaml").read_text())
    with serving(reply, models=("policy", "judge")) as endpoint:
        judge = {"engine": "openai", "model": "judge", "base_url": endpoint.base_url}
        blocks = {name: profile[name] for name in ("agent", "mcts", "rewards", "pairs")}
        config = recipe(tmp_path, endpoint.base_url, judge=judge, **blocks)
        assert branchwise("annotate", config, tmp_path / "run") == 0
    trees: dict[str, list[TreeNode]] = defaultdict(list)
    for node in nodes_of(tmp_path / "run"):
        trees[node.tree_id].append(node)
    equal = 0
    for nodes in trees.values():
        assert nodes[0].visits == 64
        contents = Counter((node.parent_id, node.action, node.content) for node in nodes)
        equal += sum(n > 1 for n in contents.values())
        for node in nodes[1:]:
            assert node.judge_score is not None
            if node.terminal:
                assert node.value == pytest.approx(node.judge_score), "not F1, not discounted"
            assert not (node.forced and node.reward is not None)
    assert equal
    assert any(node.action == "answer" for nodes in trees.values() for node in nodes)


def test_a_run_folder_of_another_run_is_refused(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    branchwise("annotate", config, run)
    made = len(endpoint.requests)
    assert branchwise("annotate", config, run, "--set", "mcts.iterations=5") == 2
    assert "mcts.iterations: was 12, now 5" in capsys.readouterr().out
    other = tmp_path / "papers"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    assert branchwise("annotate", config, other) == 2
    assert [p.name for p in other.iterdir()] == ["thesis.txt"]
    assert len(endpoint.requests) == made


def test_a_judge_scores_inner_nodes_once_and_its_critique_is_not_used(tmp_path: Path) -> None:
    asked: list[str] = []

    def both(request: dict[str, Any]) -> str:
        if request["model"] != "judge":
            return policy(request)
        asked.append(request["messages"][-1]["content"])
        score = (0.2, 0.7)[len(asked) % 2]
        return f'{{"critique": "CANARY", "score": {score}}}'

    with serving(both, models=("policy", "judge")) as endpoint:
        judge = {"engine": "openai", "model": "judge", "base_url": endpoint.base_url}
        config = recipe(
            tmp_path,
            endpoint.base_url,
            judge=judge,
            mcts={"iterations": 12, "evaluator": "judge"},
        )
        run = tmp_path / "run"
        assert branchwise("annotate", config, run) == 0
        policy_prompts = str([r["messages"] for r in endpoint.requests if r["model"] == "policy"])
    nodes = nodes_of(run)
    judged = [n for n in nodes if n.judge_score is not None]
    inner = [n for n in nodes if not n.terminal and n.depth > 0]
    assert len(asked) == len(judged) == len(inner)
    assert "CANARY" not in policy_prompts
    assert all("CANARY" not in str(p.model_dump()) for p in pairs_of(run))


@pytest.mark.parametrize(
    "change",
    [
        {"policy": {"model": "models/none"}},
        {"policy": {"engine": "openai", "model": "none"}},
        {"policy": {"engine": "openai", "model": "policy", "base_url": "http://127.0.0.1:9/v1"}},
        {"policy": {"engine": "openai", "model": "policy", "api_key_env": "NO_SUCH_KEY"}},
        {"judge": {"model": "models/none"}, "mcts": {"evaluator": "judge"}},
        {"retrieval": {"kind": "http", "url": "http://127.0.0.1:9/retrieve"}},
    ],
)
def test_a_command_that_fails_does_not_create_the_run_folder(
    tmp_path: Path, change: dict[str, dict[str, str]]
) -> None:
    with serving(policy, key="test-key") as endpoint:
        run = tmp_path / "run"
        if change.get("policy", {}).get("engine"):
            change["policy"].setdefault("base_url", endpoint.base_url)
        config = recipe(tmp_path, endpoint.base_url, **change)
        local = "models/none" in str(change)
        assert branchwise("annotate", config, run, "--dry-run") == (2 if local else 0)
        assert branchwise("annotate", config, run) == (2 if local else 1)
        assert not run.exists()
        assert branchwise("annotate", recipe(tmp_path, endpoint.base_url), run) == 0
    # A finished run needs no endpoint.
    assert branchwise("annotate", tmp_path / "recipe.yaml", run) == 0


def test_an_error_that_ends_the_run_keeps_finished_trees(tmp_path: Path) -> None:
    def expiring(request: dict[str, Any]) -> Any:
        late = "currency" in request["messages"][-1]["content"]
        return failure(401, "the key has expired") if late else policy(request)

    with serving(expiring) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        one = ("--set", "limits.max_questions_in_flight=1")
        assert branchwise("annotate", config, run, *one) == 1
    kept = trees_of(run)
    assert kept
    assert "q3" not in kept
    assert verify_manifest(run) == []


def test_replies_without_tags_are_counted_and_printed_but_not_fatal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: "\x1b[31m[bold]I would rather chat.") as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        assert branchwise("annotate", config, run) == 0
    nodes = nodes_of(run)
    assert {n.action for n in nodes if n.depth} == {"invalid"}
    assert pairs_of(run) == []
    told = capsys.readouterr().out
    assert "replies of policy were not actions" in told
    assert r"such as '\x1b[31m[bold]I would rather chat.'" in told
    assert "make warm-start" in told
    assert "\x1b" not in told
