"""The study `labels` on a run annotated with a loopback endpoint."""

import csv
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from sample_records import a_pair
from tiny_dataset import recipe

from branchwise.cli.command_line import parser, run_stage
from branchwise.runs.folder import existing_run
from branchwise.storage.ledger import Ledger
from branchwise.studies.labels import ALPHAS, ESTIMATORS, comparisons, in_order

pytestmark = pytest.mark.usefixtures("own_folder")


def branchwise(stage: str, *more: object) -> int:
    return run_stage(parser().parse_args([stage, *map(str, more)]))


@pytest.fixture
def run(tmp_path: Path, endpoint: FakeEndpoint) -> Path:
    folder = tmp_path / "run"
    # Enough iterations for final answers below most steps; `tree` needs them.
    config = recipe(tmp_path, endpoint.base_url, mcts={"iterations": 24, "max_children": 3})
    assert branchwise("annotate", "--run", folder, "--config", config) == 0
    return folder


def study(run: Path, *more: object) -> int:
    return branchwise("study", "--name", "labels", "--run", run, *more)


def table(run: Path, name: str) -> list[dict[str, str]]:
    with (run / "study" / f"labels-{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_siblings_are_compared_regardless_of_their_labels(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    found = comparisons(existing_run(run))
    assert any(pair.reward_gap == 0 for pair in found), "ties are comparisons, too"
    assert any(pair.reward_gap > 0 for pair in found)
    made = len(endpoint.requests)
    assert study(run, "--dry-run") == 0
    assert "sibling pairs, 8 fresh rollouts per side" in capsys.readouterr().out
    assert len(endpoint.requests) == made
    assert not (run / "study").exists()


def test_every_estimator_is_evaluated_with_fresh_rollouts(
    run: Path, endpoint: FakeEndpoint
) -> None:
    assert study(run) == 0
    rows = table(run, "label-survival")
    judged = [(row["estimator"], float(row["alpha"])) for row in rows]
    assert judged == [(name, alpha) for alpha in ALPHAS for name in ESTIMATORS]
    for row in rows:
        shares = [float(row[name]) for name in ("kept %", "reversed %", "tied %")]
        assert sum(shares) == pytest.approx(100, abs=0.2)
    for facet, group in (("outcomes", "outcomes"), ("gap", "gap")):
        split = table(run, f"label-survival-by-{facet}")
        assert len({row[group] for row in split}) > 1
        for row in rows:
            own = [
                r for r in split if (r["estimator"], r["alpha"]) == (row["estimator"], row["alpha"])
            ]
            assert sum(int(r["pairs"]) for r in own) == int(row["pairs"])
    greedy = [
        row for row in table(run, "label-survival-by-outcomes") if row["estimator"] == "greedy"
    ]
    assert {row["outcomes"] for row in greedy} == {"1"}, "one greedy completion is one outcome"
    assert (run / "study" / "labels.svg").exists()
    made, first = len(endpoint.requests), (run / "study" / "labels.md").read_text()
    assert "| estimator | alpha |" in first
    assert study(run) == 0
    assert len(endpoint.requests) == made
    assert (run / "study" / "labels.md").read_text() == first


def test_a_limit_stops_the_study_and_it_can_resume(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(run / "ledger.sqlite") as ledger:
        spent = ledger.totals()
    limit = spent.input_tokens + spent.output_tokens + 1
    assert study(run, "--set", f"limits.max_tokens={limit}") == 3
    said = (
        f"study labels: fresh rollouts: limits.max_tokens {limit:,} reached "
        "(raise it first); rerun the same command"
    )
    assert said in capsys.readouterr().out
    assert not (run / "study" / "labels.md").exists()
    assert study(run) == 0
    runs = (run / "study" / "labels.md").read_text().partition("All runs started")[2]
    sampled, greedy = [line for line in runs.splitlines() if "fresh rollouts, " in line]
    assert "| 2 |" in sampled, "the stopped attempt should be counted"
    assert "1 per side at a temperature of 0, of" in greedy
    assert "| 1 |" in greedy


def test_in_order_orders_pairs_by_the_values_of_the_estimator() -> None:
    pairs = [a_pair(tree_id=tree, chosen_node=1, rejected_node=2) for tree in ("a", "b", "c", "d")]
    values = {
        ("a", 1): (0.9, 3),
        ("a", 2): (0.1, 1),
        ("b", 1): (0.2, 2),  # reversed
        ("b", 2): (0.5, 4),
        ("c", 1): (0.5, 2),  # no pair: equal values
        ("c", 2): (0.5, 2),
        ("d", 1): (0.5, 2),  # no pair: its sibling has no label
    }
    kept, turned = in_order(pairs, values)
    assert (kept.tree_id, kept.chosen_node, kept.rejected_node) == ("a", 1, 2)
    assert (turned.tree_id, turned.chosen_node, turned.rejected_node) == ("b", 2, 1)
    assert (turned.chosen_reward, turned.rejected_reward) == (0.5, 0.2)
    assert turned.reward_gap == pytest.approx(0.3)
    assert (turned.chosen_outcomes, turned.rejected_outcomes) == (4, 2)


def test_the_labels_study_requires_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "atlas.yaml").write_text("name: atlas\n")
    assert branchwise("study", "--name", "labels") == 2
    assert "datasets/atlas: no run here" in capsys.readouterr().out
    assert not (tmp_path / "datasets").exists()
