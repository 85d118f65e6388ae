"""Endpoints of strangers, through the command line: what they refuse, misread or leave out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import completion, failure
from loopback import serving
from tiny_dataset import policy, recipe

from branchwise.storage.ledger import Ledger
from branchwise.storage.parts import read_parts

pytestmark = pytest.mark.usefixtures("own_cache")

Script = Callable[[dict[str, Any]], Any]


def refusing(refuses: Callable[[dict[str, Any]], bool], says: str = "unsupported") -> Script:
    return lambda body: failure(400, says) if refuses(body) else policy(body)


def has_system_turn(body: dict[str, Any]) -> bool:
    return any(turn["role"] == "system" for turn in body["messages"])


@pytest.mark.parametrize(
    ("refuses", "advice"),
    [
        (has_system_turn, "policy.request: {merge_system: true}"),
        (lambda b: "max_tokens" in b, "{rename: {max_tokens: max_completion_tokens}}"),
        (lambda b: bool({"temperature", "top_p"} & b.keys()), "{omit: [temperature, top_p]}"),
        (lambda b: bool({"n", "seed", "random_seed"} & b.keys()), "{omit: [n, seed]}"),
        (lambda b: b.get("enable_thinking") is not False, "{extra: {enable_thinking: false}}"),
        (lambda b: "structured_outputs" in b, "`policy.structured_output: none`"),
    ],
    ids=["system turn", "limit", "sampling", "seed", "thinking", "constraint"],
)
def test_doctor_names_the_setting_with_which_the_run_works(
    refuses: Callable[[dict[str, Any]], bool],
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(refusing(refuses)) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("doctor", config, tmp_path / "run") == 2
        told = " ".join(capsys.readouterr().out.split())
        assert "unsupported" in told
        assert advice in told
        advised = told.partition("accepts this request with `")[2].partition("`")[0]
        setting, _, value = advised.partition(": ")
        more = ("--set", f"{setting}={value}")
        assert branchwise("doctor", config, tmp_path / "run", *more) == 0
        assert branchwise("annotate", config, tmp_path / "run", *more) == 0
    actions = {row["action"] for row in rows(tmp_path / "run")}
    assert "query" in actions and "invalid" not in actions


def test_doctor_notices_a_constraint_that_the_server_ignores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: "Sure! The answer may be Paris.") as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("doctor", config, tmp_path / "run") == 2
    assert "the server ignores constraints" in capsys.readouterr().out


def test_checks_use_the_settings_of_the_run(tmp_path: Path) -> None:
    """An alias that `/models` does not list, of a model that takes only temperature 1."""

    def script(body: dict[str, Any]) -> Any:
        too_small = body["max_tokens"] < 50
        return failure(400, "no") if body["temperature"] != 1 or too_small else policy(body)

    with serving(script) as endpoint:
        block = {"temperature": 1.0, "max_new_tokens": 64}
        served = {"engine": "openai", "model": "policy", "base_url": endpoint.base_url}
        config = recipe(
            tmp_path,
            "",
            mcts={"temperature": 1.0, "rollout_temperature": 1.0},
            policy=served | block,
            evaluation={"policies": {"start": "policy"}, "temperature": 1.0},
        )
        assert branchwise("doctor", config, tmp_path / "run") == 0
        assert branchwise("annotate", config, tmp_path / "run") == 0


def thinking(body: dict[str, Any]) -> str:
    return f"<think>Maybe <query>x</query>.</think>\n\n{policy(body)}"


ACTIONS = {"", "query", "evidence", "answer"}


def rows(run: Path) -> list[Any]:
    columns = ["question_id", "node_id", "action", "text"]
    order = [("question_id", "ascending"), ("node_id", "ascending")]
    return list(read_parts(run, "trees", columns).sort_by(order).to_pylist())


def test_reasoning_enters_neither_prompts_nor_pairs_and_is_stored(tmp_path: Path) -> None:
    with serving(policy) as plain:
        config = recipe(tmp_path, plain.base_url)
        assert branchwise("annotate", config, tmp_path / "plain") == 0
        expected = rows(tmp_path / "plain")
        plain.script = thinking  # the same address, so the same seeds
        assert branchwise("annotate", config, tmp_path / "run") == 0
        assert not any("<think>" in str(body["messages"]) for body in plain.requests)
    assert rows(tmp_path / "run") == expected
    nodes = read_parts(tmp_path / "run", "trees", ["depth", "reasoning"]).to_pylist()
    assert {n["reasoning"] for n in nodes if n["depth"]} == {"Maybe <query>x</query>."}
    pairs = read_parts(tmp_path / "run", "pairs", ["prompt", "chosen", "rejected"]).to_pylist()
    assert pairs
    assert "Maybe" not in str(pairs)


@pytest.mark.parametrize("parser", [True, False], ids=["reasoning_content", "think in content"])
def test_qwen3_served_by_vllm_works_out_of_the_box(parser: bool, tmp_path: Path) -> None:
    """Qwen3 thinks unless its template is told not to; its thoughts need more than the limit."""

    def script(body: dict[str, Any]) -> Any:
        if body.get("chat_template_kwargs", {}).get("enable_thinking") is False:
            return policy(body)
        message = {"reasoning_content": "Let me"} if parser else {}
        text = None if parser else "<think>Let me"
        return completion(text, message=message, finish_reason="length")

    with serving(script) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("doctor", config, tmp_path / "run") == 0
        assert branchwise("annotate", config, tmp_path / "run") == 0
    assert {"query"} <= {row["action"] for row in rows(tmp_path / "run")} <= ACTIONS


def test_paid_replies_are_read_again_into_a_new_run(tmp_path: Path) -> None:
    with serving(thinking) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        old, new, fresh = (tmp_path / name for name in ("old", "new", "fresh"))
        branchwise("annotate", config, old, "--set", "policy.reasoning=keep")
        assert {row["action"] for row in rows(old)} <= {"", "invalid"}
        paid = len(endpoint.requests)
        assert branchwise("annotate", config, new, "--reread", str(old)) == 0
        reread = paid + len(endpoint.requests[paid:])
        assert branchwise("annotate", config, fresh) == 0
        assert reread - paid < len(endpoint.requests) - reread, "some calls need no payment"
    with Ledger(new / "ledger.sqlite") as ledger:
        assert ledger.totals().calls > reread - paid
    assert {"query"} <= {row["action"] for row in rows(new)} <= ACTIONS


def test_rereading_reads_as_the_run_did_unless_reasoning_says_otherwise(tmp_path: Path) -> None:
    """A server that files replies as reasoning, which counts because it was told not to think."""

    def script(body: dict[str, Any]) -> Any:
        return completion(None, message={"reasoning_content": policy(body)})

    with serving(script) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        old, new = tmp_path / "old", tmp_path / "new"
        assert branchwise("annotate", config, old) == 0
        paid = len(endpoint.requests)
        assert branchwise("annotate", config, new, "--reread", str(old)) == 0
        assert len(endpoint.requests) == paid
    assert rows(new) == rows(old)


def test_rereading_leaves_protocols_that_think_in_the_open_alone(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> str:
        return "<think>I need it.</think><answer>Paris</answer>"

    with serving(script) as endpoint:
        block = {"protocol": "search-r1"}
        config = recipe(tmp_path, endpoint.base_url, agent=block, mcts={"kind": "chains"})
        old, new = tmp_path / "old", tmp_path / "new"
        assert branchwise("annotate", config, old) == 0
        assert branchwise("annotate", config, new, "--reread", str(old)) == 0
    assert rows(new) == rows(old)
    assert "<think>" in str(rows(new))


@pytest.mark.parametrize("setting", ["policy.model=other", "policy.thinking=true"])
def test_replies_of_another_model_are_not_reread(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("annotate", config, tmp_path / "old") == 0
        how = ("--reread", str(tmp_path / "old"))
        assert branchwise("annotate", config, tmp_path / "new", *how, "--set", setting) == 2
        assert branchwise("annotate", config, tmp_path / "new", *how, "--replay") == 2
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert f"{setting.partition('=')[0]} is not that of" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("own", "advice"),
    [
        ({}, "`policy.request: {omit: [n, seed]}`"),
        ({"omit": ["seed"]}, "`policy.request: {omit: [seed, n]}`"),
        ({"omit": ["n"], "extra": {"a": 1}}, "{omit: [n, seed], extra: {a: 1}}`"),
    ],
)
def test_advice_includes_what_the_recipe_sets_already(
    own: dict[str, Any], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server refuses with status 200, and has other troubles at the same time."""
    calls = 0

    def script(body: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            return failure(503)
        if {"n", "seed", "random_seed"} & body.keys():
            return {"error": {"message": "no", "code": 400}}
        return policy(body)

    with serving(script) as endpoint:
        served = {"engine": "openai", "model": "policy", "base_url": endpoint.base_url}
        config = recipe(tmp_path, "", policy=served | {"request": own})
        assert branchwise("doctor", config, tmp_path / "run") == 2
    assert advice in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (completion(None, finish_reason="length"), "its reply is empty: the token limit"),
        ("Perhaps it is so.", "its verdict cannot be read: 'Perhaps it is so.'"),
    ],
)
def test_doctor_names_a_judge_that_cannot_be_read(
    reply: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        serving(policy) as endpoint,
        serving(lambda _: reply, models=("judge",), owned_by="x") as judging,
    ):
        judge = {"engine": "openai", "model": "judge", "base_url": judging.base_url}
        evaluation = {"policies": {"start": "policy"}, "judge": judge}
        config = recipe(tmp_path, endpoint.base_url, evaluation=evaluation)
        assert branchwise("doctor", config, tmp_path / "run") == 2
    assert f"evaluation.judge: {says}" in capsys.readouterr().out


def test_a_refusal_that_happens_once_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replies = [failure(400)]
    with serving(lambda body: replies.pop() if replies else policy(body)) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("doctor", config, tmp_path / "run") == 2
    assert "It accepted the same request a moment later" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("message", "finish", "advice"),
    [
        ({"reasoning_content": "Hm"}, "length", "limit cut the reasoning. raise policy.max_new"),
        ({"reasoning_content": "Hm"}, "stop", "set policy.reasoning to reply"),
        ({}, "length", "raise policy.max_new_tokens"),
        ({"refusal": "no"}, "stop", "moderation"),
        ({"tool_calls": [{}]}, "tool_calls", "does not call tools"),
    ],
)  # fmt: skip
def test_empty_replies_are_summarised_by_cause(
    message: dict[str, Any],
    finish: str,
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(_: dict[str, Any]) -> dict[str, Any]:
        return completion(None, message=message, finish_reason=finish)

    with serving(script, owned_by="somebody") as endpoint:
        branchwise("annotate", recipe(tmp_path, endpoint.base_url), tmp_path / "run")
    told = " ".join(capsys.readouterr().out.split())
    assert advice in told
    assert "such as ''" not in told
