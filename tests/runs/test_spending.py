"""Limits and totals with endpoints that report no usage, and over several attempts."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint, completion
from loopback import serving
from tiny_dataset import policy, recipe

PRICE = {"input": 100.0, "output": 400.0}
ODD = [
    None,
    {},
    {"prompt_tokens": -5, "completion_tokens": -1},
    {"prompt_tokens": "many", "completion_tokens": True},
    {"prompt_tokens": 0, "completion_tokens": 0},
]


pytestmark = pytest.mark.usefixtures("own_cache")


def with_usage(usage: Any) -> Any:
    """Returns replies of the tiny data set's policy that report this usage."""
    return lambda request: completion(policy(request), usage=usage)


@pytest.fixture
def silent() -> Iterator[FakeEndpoint]:
    """Endpoint that does not report token counts."""
    with serving(with_usage(None)) as endpoint:
        yield endpoint


def priced(endpoint: FakeEndpoint) -> dict[str, Any]:
    return {
        "engine": "openai",
        "model": "policy",
        "base_url": endpoint.base_url,
        "price_per_million": PRICE,
    }


def stage(name: str, config: Path, run: Path, *more: str) -> int:
    return branchwise(name, config, run, "--json", *more)


def in_ledger(run: Path) -> dict[str, Any]:
    """Returns the sums of the ledger, computed with SQL."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        calls, tokens, cost, estimated = ledger.execute(
            "SELECT count(*), sum(input_tokens) + sum(output_tokens), sum(cost_usd), "
            "sum(usage_basis <> 'reported') FROM calls WHERE error IS NULL"
        ).fetchone()
    return {"calls": calls, "tokens": tokens, "cost_usd": cost or 0.0, "estimated": estimated}


def assert_totals_match_ledger(totals: dict[str, Any], run: Path) -> None:
    """Asserts that the totals of `--json` equal those of the ledger."""
    held = in_ledger(run)
    assert totals["calls"] == held["calls"]
    assert totals["input_tokens"] + totals["output_tokens"] == held["tokens"]
    assert totals["cost_usd"] == pytest.approx(held["cost_usd"])
    assert totals["calls_estimated"] == held["estimated"]


def totals_and_log(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Returns the totals and the log of the last stage."""
    told = capsys.readouterr()
    return json.loads(told.out.splitlines()[-1]), told.err


@pytest.mark.parametrize("usage", ODD)
def test_a_token_limit_is_enforced_even_if_the_reported_usage_is_unusable(
    usage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(with_usage(usage)) as endpoint:
        limits = {"max_tokens": 10_000, "max_questions_in_flight": 1}
        config, run = recipe(tmp_path, endpoint.base_url, limits=limits), tmp_path / "run"
        assert stage("annotate", config, run) == 3
    totals, told = totals_and_log(capsys)
    assert "max_tokens" in told
    held = in_ledger(run)
    assert held["calls"] == held["estimated"] == len(endpoint.requests)
    assert held["tokens"] - 10_000 < held["tokens"] / held["calls"] * 2, (
        "the limit may be exceeded by about one call"
    )
    assert_totals_match_ledger(totals, run)


def test_a_dollar_limit_is_enforced_without_reported_usage(
    silent: FakeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"max_usd": 1.0, "max_questions_in_flight": 1}
    config = recipe(tmp_path, "", policy=priced(silent), limits=limits)
    run = tmp_path / "run"
    assert stage("annotate", config, run) == 3
    totals, told = totals_and_log(capsys)
    assert 1.0 <= totals["cost_usd"] < 1.5
    assert f"{totals['calls']} of {totals['calls']} calls, so limits and costs use ours" in told
    assert "estimated from above, from bytes" in told
    assert told.count("reports no usable token counts") == 1
    assert totals["counts"]["tokens estimated from above, from bytes"] == totals["calls"]
    assert_totals_match_ledger(totals, run)


def test_an_evaluation_counts_and_logs_estimated_tokens_too(
    silent: FakeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    asking = {"policies": {"start": "policy"}, "set": questions}
    blocks = {"policy": priced(silent), "evaluation": asking}
    config, run = recipe(tmp_path, "", **blocks), tmp_path / "run"
    limit = ("--set", "limits.max_usd=0.5", "--set", "limits.max_questions_in_flight=1")
    assert stage("eval", config, run, *limit) == 3
    totals, told = totals_and_log(capsys)
    assert "from bytes" in told
    assert_totals_match_ledger(totals, run)
    assert stage("eval", config, run) == 0
    totals, told = totals_and_log(capsys)
    assert "calls, so limits and costs use ours" in told
    assert_totals_match_ledger(totals, run)


def test_reported_token_counts_are_not_marked_as_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        config, run = recipe(tmp_path, "", policy=priced(endpoint)), tmp_path / "run"
        assert stage("annotate", config, run) == 0
    totals, told = totals_and_log(capsys)
    assert totals["calls_estimated"] == 0
    assert "costs use ours" not in told
    assert "token counts" not in told
    assert_totals_match_ledger(totals, run)


def test_calls_without_a_price_are_logged_if_max_usd_is_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        free = {**priced(endpoint), "price_per_million": None}
        run, few = tmp_path / "run", {"max_tokens": 300}
        assert stage("annotate", recipe(tmp_path, "", policy=free, limits=few), run) == 3
        before, _ = totals_and_log(capsys)
        config = recipe(tmp_path, "", policy=priced(endpoint), limits={"max_usd": 1000.0})
        assert stage("annotate", config, run) == 0
    _, told = totals_and_log(capsys)
    assert f"max_usd does not count {before['calls']} calls" in told


def test_totals_include_earlier_attempts_but_progress_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        config, run = recipe(tmp_path, "", policy=priced(endpoint)), tmp_path / "run"
        some = ("--set", "limits.max_tokens=300", "--set", "limits.max_questions_in_flight=1")
        assert stage("annotate", config, run, *some) == 3
        before, _ = totals_and_log(capsys)
        assert_totals_match_ledger(before, run)
        assert stage("annotate", config, run) == 0
        made = len(endpoint.requests)
    totals, told = totals_and_log(capsys)
    assert totals["calls"] == made > before["calls"]
    assert_totals_match_ledger(totals, run)
    assert f"{made} calls in the ledger, {totals['cost_usd']:,.4f} USD" in told
    (last,) = [line for line in told.splitlines() if "· questions 6/6 ·" in line]
    assert f"USD {totals['cost_usd'] - before['cost_usd']:,.4f}" in last
