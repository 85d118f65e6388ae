"""Limits and totals at endpoints that report no usage, and those of runs with several workers."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, completion
from loopback import serving
from tiny_dataset import policy, recipe

from pipelines.cli import parser, run_stage

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
    """The little world's policy at an endpoint that reports this."""
    return lambda request: completion(policy(request), usage=usage)


@pytest.fixture
def silent() -> Iterator[FakeEndpoint]:
    """An endpoint that says nothing of tokens."""
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
    arguments = [name, "--config", str(config), "--run", str(run), "--json", *more]
    return run_stage(parser().parse_args(arguments))


def in_ledger(run: Path) -> dict[str, Any]:
    """The ledger's own sums, as SQL gives them."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        calls, tokens, cost, estimated = ledger.execute(
            "SELECT count(*), sum(input_tokens) + sum(output_tokens), sum(cost_usd), "
            "sum(usage_basis <> 'reported') FROM calls WHERE error IS NULL"
        ).fetchone()
    return {"calls": calls, "tokens": tokens, "cost_usd": cost or 0.0, "estimated": estimated}


def agree(totals: dict[str, Any], run: Path) -> None:
    """`--json` says what the ledger holds."""
    held = in_ledger(run)
    assert totals["calls"] == held["calls"]
    assert totals["input_tokens"] + totals["output_tokens"] == held["tokens"]
    assert totals["cost_usd"] == pytest.approx(held["cost_usd"])
    assert totals["calls_estimated"] == held["estimated"]


def ended(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The stage's totals, and what it told."""
    told = capsys.readouterr()
    return json.loads(told.out.splitlines()[-1]), told.err


@pytest.mark.parametrize("usage", ODD)
def test_a_limit_in_tokens_holds_whatever_the_endpoint_reports(
    usage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(with_usage(usage)) as endpoint:
        limits = {"max_tokens": 10_000, "max_questions_in_flight": 1}
        config, run = recipe(tmp_path, endpoint.base_url, limits=limits), tmp_path / "run"
        assert stage("annotate", config, run) == 3
    totals, told = ended(capsys)
    assert "max_tokens" in told
    held = in_ledger(run)
    assert held["calls"] == held["estimated"] == len(endpoint.requests)
    assert held["tokens"] - 10_000 < held["tokens"] / held["calls"] * 2, "overrun by a call"
    agree(totals, run)


def test_a_limit_in_dollars_holds_without_usage(
    silent: FakeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"max_usd": 1.0, "max_questions_in_flight": 1}
    config = recipe(tmp_path, "", policy=priced(silent), limits=limits)
    run = tmp_path / "run"
    assert stage("annotate", config, run) == 3
    totals, told = ended(capsys)
    assert 1.0 <= totals["cost_usd"] < 1.5
    assert f"{totals['calls']} of {totals['calls']} calls, so limits and costs use ours" in told
    assert "estimated from above, from bytes" in told
    assert told.count("reports no usable token counts") == 1
    assert totals["counts"]["tokens estimated from above, from bytes"] == totals["calls"]
    agree(totals, run)


def test_an_evaluation_counts_and_tells_likewise(
    silent: FakeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    asking = {"policies": {"start": "policy"}, "set": questions}
    blocks = {"policy": priced(silent), "evaluation": asking}
    config, run = recipe(tmp_path, "", **blocks), tmp_path / "run"
    limit = ("--set", "limits.max_usd=0.5", "--set", "limits.max_questions_in_flight=1")
    assert stage("eval", config, run, *limit) == 3
    totals, told = ended(capsys)
    assert "from bytes" in told
    agree(totals, run)
    assert stage("eval", config, run) == 0
    totals, told = ended(capsys)
    assert "calls, so limits and costs use ours" in told
    agree(totals, run)


def test_counts_that_are_reported_are_not_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        config, run = recipe(tmp_path, "", policy=priced(endpoint)), tmp_path / "run"
        assert stage("annotate", config, run) == 0
    totals, told = ended(capsys)
    assert totals["calls_estimated"] == 0
    assert "are ours" not in told
    assert "token counts" not in told
    agree(totals, run)


def test_calls_without_a_price_are_told_of_where_dollars_are_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        free = {**priced(endpoint), "price_per_million": None}
        run, few = tmp_path / "run", {"max_tokens": 300}
        assert stage("annotate", recipe(tmp_path, "", policy=free, limits=few), run) == 3
        before, _ = ended(capsys)
        config = recipe(tmp_path, "", policy=priced(endpoint), limits={"max_usd": 1000.0})
        assert stage("annotate", config, run) == 0
    _, told = ended(capsys)
    assert f"max_usd does not count {before['calls']} calls" in told


def test_totals_include_what_workers_spend_in_this_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        config, run = recipe(tmp_path, "", policy=priced(endpoint)), tmp_path / "run"
        some = ("--set", "limits.max_tokens=300", "--set", "limits.max_questions_in_flight=1")
        assert stage("annotate", config, run, *some) == 3
        before, _ = ended(capsys)
        agree(before, run)
        assert stage("annotate", config, run, "--workers", "2") == 0
        made = len(endpoint.requests)
    totals, told = ended(capsys)
    assert totals["calls"] == made > before["calls"]
    agree(totals, run)
    assert f"{made} calls in the ledger, {totals['cost_usd']:,.4f} USD" in told
    (last,) = [line for line in told.splitlines() if "· questions 6/6 ·" in line]
    assert f"USD {totals['cost_usd'] - before['cost_usd']:,.4f}" in last


def test_what_every_worker_meets_is_told_once(
    silent: FakeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = recipe(tmp_path, silent.base_url), tmp_path / "run"
    one = ("--set", "limits.max_questions_in_flight=2")
    assert stage("annotate", config, run, "--workers", "2", *one) == 0
    totals, told = ended(capsys)
    assert totals["calls_estimated"] == totals["calls"] == len(silent.requests)
    assert told.count("reports no usable token counts") == 1
