"""Cost estimates of dry runs, compared with the cost of the same stage when it runs."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint
from tiny_dataset import recipe

from branchwise.mcts import SEARCH_SETTINGS, Expansion, Node, TreeSettings, sample_chains, search
from branchwise.runs.cost_bounds import tree_calls
from branchwise.runs.costs import expected_sum
from branchwise.storage.call_history import calls_per_second
from branchwise.storage.ledger import Ledger

PRICE = {"input": 1.0, "output": 4.0}


@pytest.fixture
def config(tmp_path: Path, endpoint: FakeEndpoint, own_cache: None) -> Path:
    asked = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    return recipe(
        tmp_path,
        endpoint.base_url,
        policy={
            "engine": "openai",
            "model": "policy",
            "base_url": endpoint.base_url,
            "price_per_million": PRICE,
        },
        evaluation={"set": asked, "baselines": ["closed-book"]},
        difficulty={
            "rollouts": 4,
            "easy": 1,
            "medium": 2,
            "stages": {"1": {"easy": 1, "medium": 1, "difficult": 1, "unsolved": 1}},
        },
    )


def stage(name: str, config: Path, *more: str) -> int:
    return branchwise(name, config, config.parent / "run", "--json", *more)


def dry_run(
    name: str, config: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[dict[str, Any], str]:
    """Returns totals and log of a dry run, and checks that it changed no file."""
    before = files_of(config.parent)
    capsys.readouterr()
    assert stage(name, config, "--dry-run", *more) == 0
    assert files_of(config.parent) == before
    told = capsys.readouterr()
    return json.loads(told.out), told.err


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def spent(config: Path) -> dict[str, float]:
    with Ledger(config.parent / "run" / "ledger.sqlite") as ledger:
        found = ledger.totals()
    return {"calls": found.calls, "output_tokens": found.output_tokens, "cost_usd": found.cost_usd}


def within(total: float, bounds: list[float]) -> bool:
    """Is the total between the bounds? Sums of equal costs in another order differ by rounding."""
    low, high = bounds
    return low <= total * (1 + 1e-9) and total <= high * (1 + 1e-9)


def test_annotate_is_estimated_from_the_recipe_and_later_from_the_run(
    config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, words = dry_run("annotate", config, capsys, "--limit", "3")
    assert endpoint.requests == []
    assert expected["expected_questions"] == [3, 3]
    assert expected["expected_from"] == "bounds from the recipe"
    assert expected["expected_seconds"] is None
    assert "bounds from the recipe" in words
    assert stage("annotate", config, "--limit", "3") == 0
    paid = spent(config)
    for what in ("calls", "output_tokens"):
        low, high = expected[f"expected_{what}"]
        assert low <= paid[what] <= high
    assert paid["cost_usd"] <= expected["expected_cost_usd"][1]

    made = len(endpoint.requests)
    expected, words = dry_run("annotate", config, capsys)
    assert len(endpoint.requests) == made
    assert expected["expected_questions"] == [3, 3], "three of six are done"
    assert expected["expected_from"] == "from 3 questions of this run"
    for what, total in paid.items():
        assert within(total, expected[f"expected_{what}"]), (
            "the questions left should cost about as much as those done"
        )
    assert f"from 3 questions of this run, {paid['calls'] / 3:.1f} per question" in words
    assert "calls per second" in words
    assert stage("annotate", config) == 0
    finished, words = dry_run("annotate", config, capsys)
    assert finished["expected_calls"] == [0, 0]
    assert "expected calls: none, 0 questions left" in words


@pytest.mark.parametrize(("name", "unit"), [("eval", "answer"), ("select", "question")])
def test_eval_and_select_are_estimated_from_the_recipe_and_later_the_run(
    name: str, unit: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = dry_run(name, config, capsys)
    assert expected["expected_from"] == "bounds from the recipe"
    no_easy_question = 2 if name == "select" else 0
    assert stage(name, config) in (0, no_easy_question)
    paid = spent(config)
    for what in ("calls", "output_tokens"):
        low, high = expected[f"expected_{what}"]
        assert low <= paid[what] <= high
    after, _ = dry_run(name, config, capsys)
    assert after["expected_from"].endswith(f"{unit}s of this run")


def test_calls_of_another_stage_are_not_used_for_the_estimate(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage("eval", config) == 0
    expected, _ = dry_run("annotate", config, capsys)
    assert expected["expected_from"] == "bounds from the recipe"


def test_unknown_prices_give_no_cost_estimate(
    tmp_path: Path,
    endpoint: FakeEndpoint,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unpriced = recipe(tmp_path, endpoint.base_url)
    expected, words = dry_run("annotate", unpriced, capsys)
    assert expected["expected_cost_usd"] is None
    assert "no price set" in words
    assert stage("annotate", unpriced, "--limit", "1") == 0
    assert dry_run("annotate", unpriced, capsys)[0]["expected_cost_usd"] is None


def test_history_estimates_from_another_run(
    tmp_path: Path, config: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert stage("annotate", config, "--limit", "3") == 0
    paid = spent(config)
    elsewhere = ("--run", str(tmp_path / "new"), "--history", run)
    dearer = ("--set", "policy.price_per_million={input: 10, output: 40}")
    expected, words = dry_run("annotate", config, capsys, *elsewhere, *dearer)
    assert expected["expected_questions"] == [6, 6]
    assert expected["expected_from"] == f"from 3 questions of {run}"
    assert expected["expected_calls"][0] <= 2 * paid["calls"] <= expected["expected_calls"][1]
    assert within(20 * paid["cost_usd"], expected["expected_cost_usd"]), (
        "the estimate should use the prices of the recipe"
    )
    assert "other settings" not in words
    _, words = dry_run("annotate", config, capsys, *elsewhere, "--set", "mcts.c=9")
    assert "the run that this estimate is from has other settings: mcts.c\n" in words
    assert stage("select", config, "--dry-run", "--history", run) == 2
    assert "has no finished questions of this stage" in capsys.readouterr().err
    assert stage("annotate", config, "--dry-run", "--history", str(tmp_path)) == 2
    assert "no run here" in capsys.readouterr().err
    assert stage("annotate", config, "--history", run) == 2
    assert "Add --dry-run" in capsys.readouterr().err


def test_eval_is_estimated_with_the_price_in_the_recipe(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage("eval", config) == 0
    at_old_price, _ = dry_run("eval", config, capsys)
    dearer = ("--set", "policy.price_per_million={input: 10, output: 40}")
    expected, _ = dry_run("eval", config, capsys, *dearer)
    assert expected["expected_cost_usd"][0] >= 9 * at_old_price["expected_cost_usd"][0] > 0


def test_a_judge_has_its_own_price(
    tmp_path: Path, endpoint: FakeEndpoint, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"engine": "openai", "model": "policy", "base_url": endpoint.base_url}
    judged = recipe(
        tmp_path,
        endpoint.base_url,
        policy={**asked, "price_per_million": PRICE},
        judge={**asked, "price_per_million": {"input": 100.0, "output": 400.0}},
        mcts={"iterations": 8, "max_children": 2, "evaluator": "judge"},
    )
    bounds, _ = dry_run("annotate", judged, capsys, "--limit", "3")
    assert stage("annotate", judged, "--limit", "3") == 0
    paid = spent(judged)
    assert bounds["expected_calls"][0] <= paid["calls"] <= bounds["expected_calls"][1]
    assert paid["cost_usd"] <= bounds["expected_cost_usd"][1]
    left, _ = dry_run("annotate", judged, capsys)
    assert within(paid["cost_usd"], left["expected_cost_usd"])
    assert paid["cost_usd"] > 10 * paid["calls"] * (12 * 1.0 + 3 * 4.0) / 1e6, (
        "the cost should include the judge calls"
    )


SEARCHES = [
    {"iterations": 12, "max_children": 2},
    {"iterations": 40, "max_children": 3, "rollouts": 2},
    {"iterations": 200, "max_children": 2},
    {"iterations": 9, "max_children": 4, "evaluator": "judge"},
    {"iterations": 30, "max_children": 3, "evaluator": "playout"},
    {"kind": "chains", "iterations": 6},
    {"kind": "chains", "iterations": 4, "branches": 3},
]


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
@pytest.mark.parametrize("ending", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kinds", [1, 2, 100])
def test_every_search_makes_calls_within_its_bounds(
    settings: dict[str, Any], ending: float, kinds: int
) -> None:
    """Covers policies that always or never end, and that often or rarely repeat an action."""
    kind = SEARCH_SETTINGS[settings.get("kind", "tree")]
    chosen, steps = kind.model_validate(settings), 4
    grow: Any = sample_chains if chosen.kind == "chains" else search
    low, high, ends = tree_calls(chosen, steps)
    drawn, calls, finished = random.Random(0), 0, 0

    async def expand(node: Node[int], draw: int) -> Expansion[int]:
        nonlocal calls
        calls += 1
        last = node.depth + 1 == steps or drawn.random() < ending
        return Expansion(node.depth + 1, last, (drawn.randrange(kinds), last))

    async def evaluate(node: Node[int]) -> float:
        nonlocal calls, finished
        finished += node.terminal
        if isinstance(chosen, TreeSettings) and chosen.uses("rollout") and not node.terminal:
            calls += chosen.rollouts * (steps - node.depth)
        return drawn.random()

    for _ in range(20):
        calls = finished = 0
        asyncio.run(grow(0, expand, evaluate, chosen))
        assert low <= calls <= high
        assert finished <= ends


def test_expected_sum_widens_with_the_spread_and_narrows_with_observations() -> None:
    assert expected_sum([7.0, 7.0, 7.0], (10, 10)) == (70, 70)
    assert expected_sum([7.0], (10, 20)) == (35, 280)
    low, high = expected_sum([6.0, 8.0], (10, 10))
    closer = expected_sum([6.0, 8.0] * 50, (10, 10))
    assert 0 <= low < closer[0] < 70 < closer[1] < high


def test_pauses_between_attempts_do_not_count_as_time() -> None:
    minute = [(float(second), 1.0) for second in range(1, 61)]
    later = [(end + 5000, latency) for end, latency in minute]
    assert calls_per_second(minute) == pytest.approx(1)
    assert calls_per_second(later + minute) == pytest.approx(1)
    assert calls_per_second([*minute, *minute]) == pytest.approx(2), "calls in parallel"
    assert calls_per_second([]) is None
