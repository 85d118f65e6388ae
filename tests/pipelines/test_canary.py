"""No gold field of a question reaches a policy or a verifier, in any stage."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from evo_world import EVO, evo_policy, words_alike
from loopback import serving
from stored_rows import pairs_of
from tiny_dataset import QUESTIONS, policy, recipe

pytestmark = pytest.mark.usefixtures("own_cache")

CANARY = "CANARY-7f3a"
GOLD = "GOLD-91c4"
"""Mark in the text of the supporting paragraph, which only the oracle may see."""


def marked(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the question with a mark in every field except its id and its text."""
    paragraph = {"id": CANARY, "title": GOLD, "text": GOLD, "is_supporting": True}
    return {
        **row,
        "answers": [*row["answers"], CANARY],
        "type": CANARY,
        "supporting_titles": [CANARY],
        "supporting_ids": [CANARY],
        "paragraphs": [paragraph],
        "extra": {"decomposition": CANARY},
    }


def test_no_gold_field_reaches_a_policy_or_a_pair(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with serving(policy) as endpoint:
        asked_of = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl")}
        evaluation = {
            "policies": {"served": "policy"},
            "baselines": ["majority", "closed-book", "one-shot"],
            "set": {**asked_of, "split": None},
        }
        config = recipe(tmp_path, endpoint.base_url, evaluation=evaluation)
        lines = "".join(json.dumps(marked(row)) + "\n" for row in QUESTIONS)
        (tmp_path / "questions.jsonl").write_text(lines)
        assert branchwise("annotate", config, run) == 0
        trained = pairs_of(run)
        assert (
            branchwise("relabel", config, run, "--label", "again", "--set", "rewards.alpha=0.8")
            == 0
        )
        before = len(endpoint.requests)
        assert branchwise("eval", config, tmp_path / "evaluated") == 0
        assert len(endpoint.requests) > before > 0
        asked = json.dumps(endpoint.requests)
        before = len(endpoint.requests)
        assert (
            branchwise(
                "eval", config, tmp_path / "evaluated", "--set", "evaluation.baselines=[oracle]"
            )
            == 0
        )
        oracle = [json.dumps(request) for request in endpoint.requests[before:]]
    assert trained
    assert CANARY not in asked
    assert GOLD not in asked
    assert len(oracle) == len(QUESTIONS)
    assert all(GOLD in one and CANARY not in one for one in oracle), (
        "the oracle gets the gold passages and no other gold field"
    )
    for pair in (*trained, *pairs_of(run, "relabelled/again/pairs")):
        seen = [*pair.prompt, *pair.chosen, *pair.rejected]
        assert not any(mark in message.content for message in seen for mark in (CANARY, GOLD))


def test_no_gold_field_reaches_an_evo_rag_policy_its_verifier_or_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("branchwise.rewards.evo_rag.scheme.query_similarity", lambda: words_alike)
    run = tmp_path / "run"
    with serving(evo_policy, models=("policy", "verifier")) as endpoint:
        served = {"engine": "openai", "model": "verifier", "base_url": endpoint.base_url}
        config = recipe(tmp_path, endpoint.base_url, **EVO, verifier=served)
        lines = "".join(json.dumps(marked(row)) + "\n" for row in QUESTIONS)
        (tmp_path / "questions.jsonl").write_text(lines)
        assert branchwise("annotate", config, run) == 0
        assert (
            branchwise(
                "relabel", config, run, "--label", "again", "--set", "rewards.stage=refinement"
            )
            == 0
        )
        asked = json.dumps(endpoint.requests)
        models = {request["model"] for request in endpoint.requests}
    assert models == {"policy", "verifier"}
    assert CANARY not in asked
    assert GOLD not in asked
    trained = pairs_of(run), pairs_of(run, "relabelled/again/pairs")
    assert all(trained)
    for pair in (*trained[0], *trained[1]):
        seen = [*pair.prompt, *pair.chosen, *pair.rejected]
        assert not any(mark in message.content for message in seen for mark in (CANARY, GOLD))
