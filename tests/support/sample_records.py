"""Sample records for tests that set only a few fields."""

from dataclasses import replace
from typing import Any

from branchwise.storage.ledger_rows import Call
from branchwise.types import Component, Message, Pair, Prediction, Question, Rollout, TreeNode


def a_question(**changes: Any) -> Question:
    """Returns a one-hop question."""
    fields = {
        "id": "q1",
        "source": "atlas",
        "question": "Capital of France?",
        "answers": ("Paris",),
    }
    return Question.model_validate({**fields, "type": "bridge", "hops": 1} | changes)


def a_node(**changes: Any) -> TreeNode:
    """Returns a query node below the root."""
    fields: dict[str, Any] = {
        "tree_id": "t1",
        "question_id": "q1",
        "source": "atlas",
        "seed": 0,
        "node_id": 1,
        "parent_id": 0,
        "depth": 1,
        "stage": "reasoning",
        "action": "query",
        "text": "<query>France</query>",
        "content": "France",
    }
    return TreeNode.model_validate(fields | changes)


def a_rollout(answer: str | None, **changes: Any) -> Rollout:
    """Returns a rollout of three steps with this answer, or an invalid one without an answer."""
    reason = "answer" if answer else "invalid"
    fields = {"draw": 0, "em": None, "f1": None, "steps": 3, "forced": False, "tokens": 9}
    return Rollout.model_validate({"answer": answer, "stop_reason": reason, **fields, **changes})


def a_pair(**changes: Any) -> Pair:
    """Returns a pair that prefers a query to a wrong answer."""
    fields: dict[str, Any] = {
        "pair_id": "p1",
        "tree_id": "t1",
        "question_id": "q1",
        "source": "atlas",
        "seed": 0,
        "question": "Capital of France?",
        "answers": ("Paris",),
        "parent_node": 0,
        "chosen_node": 1,
        "rejected_node": 2,
        "depth": 1,
        "stage": "reasoning",
        "prompt": (
            Message(role="system", content="Answer."),
            Message(role="user", content="Question: Capital of France?"),
        ),
        "chosen": (Message(role="assistant", content="<query>France</query>"),),
        "rejected": (Message(role="assistant", content="<answer>Rome</answer>"),),
        "chosen_action": "query",
        "rejected_action": "answer",
        "chosen_reward": 0.75,
        "rejected_reward": 0.25,
        "reward_gap": 0.5,
        "chosen_visits": 3,
        "rejected_visits": 1,
        "chosen_outcomes": 2,
        "rejected_outcomes": 1,
        "chosen_components": (Component(name="f1", value=0.75), Component(name="em", value=None)),
        "policy_model": "m",
        "policy_digest": "d",
        "prompt_hash": "h",
        "label_digest": "l",
        "config_digest": "c",
    }
    return Pair.model_validate(fields | changes)


def a_prediction(**changes: Any) -> Prediction:
    """Returns a prediction with a wrong answer after one search."""
    fields: dict[str, Any] = {
        "question_id": "q1",
        "source": "atlas",
        "guessable": False,
        "policy": "dpo",
        "protocol": "reasonrag",
        "policy_digest": "d",
        "seed": 0,
        "prediction": "Rome",
        "answers": ("Paris",),
        "em": 0.0,
        "f1": 0.0,
        "cover_em": 0.0,
        "steps": 3,
        "searches": 1,
        "valid_searches": 1,
        "backtracks": 0,
        "forced": False,
        "refused": False,
        "format_ok": True,
        "stop_reason": "answer",
        "supporting_recall": 0.5,
        "trajectory": "[]",
        "input_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 20,
        "latency_s": 0.1,
    }
    return Prediction.model_validate(fields | changes)


def a_call(**changes: Any) -> Call:
    """Returns a policy call in a tree; its answer has characters that text formats often break."""
    call = Call(
        key="k1", role="policy", model="m", policy_digest="d", question_id="q1", path="tree/0",
        draw=0, prompt_digest="p", text="<answer>Zoë\0 \U0001f600</answer>", finish_reason="stop",
        stop_reason=None, input_tokens=10, cached_tokens=4, output_tokens=5, usage_basis="reported",
        cost_usd=0.25, latency_s=0.5, attempts=1, error=None, at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return replace(call, **changes)
