"""The counts of a run: over all attempts, failures by kind, and models that replied."""

from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from evo_world import EVO, evo_policy, words_alike
from fake_endpoint import completion, failure
from loopback import serving
from tiny_dataset import policy, recipe

from branchwise.storage.ledger import Ledger
from branchwise.storage.parts import question_ids, read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Pair

pytestmark = pytest.mark.usefixtures("own_cache")


def unlucky(request: dict[str, Any]) -> Any:
    if "currency" in request["messages"][-1]["content"]:  # q3
        return failure(400, "this model's maximum context length is exceeded")
    return policy(request)


def closing_table(told: str) -> dict[str, int]:
    """Returns the rows of the printed table: count per reason."""
    lines = told.partition("annotate: counted")[2].partition("questions done")[0].splitlines()
    counted = (line.strip("│ ").split("│") for line in lines if line.startswith("│"))
    return {reason.strip(): int(n) for reason, n in counted}


def test_counts_of_several_attempts_equal_those_of_one_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(unlucky) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        assert branchwise("annotate", config, whole) == 4
        expected = closing_table(capsys.readouterr().out)
        with Ledger(whole / "ledger.sqlite") as ledger:
            half = (ledger.totals().input_tokens + ledger.totals().output_tokens) // 2
        one_by_one = ("--set", "limits.max_questions_in_flight=1")
        assert (
            branchwise("annotate", config, parts, "--set", f"limits.max_tokens={half}", *one_by_one)
            == 3
        )
        assert 0 < len(question_ids(parts, "trees")) < 6
        for attempt in ("resumed", "finished"):
            capsys.readouterr()
            assert branchwise("annotate", config, parts) == 4
            assert closing_table(capsys.readouterr().out) == expected, attempt
    assert expected["question failed: RefusedRequest"] == 1
    assert expected["data: jsonl: questions read"] == 6
    assert expected["duplicate siblings"] > 0


def test_an_unused_judge_is_not_opened_and_not_recorded(tmp_path: Path) -> None:
    with serving(policy) as endpoint:
        judge = {"engine": "openai", "model": "absent", "base_url": endpoint.base_url}
        run = tmp_path / "run"
        assert branchwise("annotate", recipe(tmp_path, endpoint.base_url, judge=judge), run) == 0
    pairs = table_to_records(read_parts(run, "pairs"), Pair)
    assert {pair.judge_model for pair in pairs} == {None}


def test_a_reply_of_another_model_is_counted_once_if_policy_and_judge_are_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gateway(request: dict[str, Any]) -> dict[str, Any]:
        return completion(policy(request), model="policy-2026[bold]")

    with serving(gateway) as endpoint:
        judge = {"engine": "openai", "model": "policy", "base_url": endpoint.base_url}
        blocks: dict[str, Any] = {"judge": judge, "mcts": {"evaluator": "judge"}}
        branchwise("annotate", recipe(tmp_path, endpoint.base_url, **blocks), tmp_path / "run")
        told = closing_table(capsys.readouterr().out)
    assert told["warning: policy answered as policy-2026[bold]"] == len(endpoint.requests)


def test_a_reply_of_another_verifier_is_counted_as_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("branchwise.rewards.evo_rag.scheme.query_similarity", lambda: words_alike)

    def gateway(request: dict[str, Any]) -> dict[str, Any]:
        answers_as = "cheaper" if request["model"] == "verifier" else "policy"
        return completion(evo_policy(request), model=answers_as)

    with serving(gateway, models=("policy", "verifier")) as endpoint:
        served = {"engine": "openai", "model": "verifier", "base_url": endpoint.base_url}
        blocks = {**EVO, "verifier": served}
        assert (
            branchwise("annotate", recipe(tmp_path, endpoint.base_url, **blocks), tmp_path / "run")
            == 0
        )
        told = closing_table(capsys.readouterr().out)
        asked = sum(request["model"] == "verifier" for request in endpoint.requests)
    assert told["warning: verifier answered as cheaper"] == asked > 0
