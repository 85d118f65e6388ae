"""`diagnose` on a run of a loopback endpoint: findings, tables, and no repeated calls."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, failure
from loopback import serving
from sample_records import a_pair
from tiny_dataset import policy, recipe

from branchwise.analysis.diagnosis import TreeFigures, pair_figures
from branchwise.analysis.survival import SurvivalRow, order_verdict, survival_table
from branchwise.cli.command_line import parser, run_stage
from branchwise.pipelines.diagnose.diagnosis_rules import (
    FEW_PAIRS,
    conclusion,
    pair_findings,
    survival_finding,
    training_findings,
    tree_findings,
)
from branchwise.runs.folder import existing_run
from branchwise.runs.fresh_rollouts import stored_fresh
from branchwise.runs.proguide import write_proguide
from branchwise.storage.ledger import Ledger
from branchwise.storage.manifest import add_parts, load_manifest, remove_parts
from branchwise.storage.parts import read_parts, write_part
from branchwise.storage.schemas import rows_to_table, schema_of, table_to_records
from branchwise.training.curves import PolicyShift, movement_of
from branchwise.types import FreshRollouts, Pair, Rollout, TreeNode

pytestmark = pytest.mark.usefixtures("own_folder")


def branchwise(stage: str, run: Path, *more: object) -> int:
    return run_stage(parser().parse_args([stage, "--run", str(run), *map(str, more)]))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(policy) as served:
        yield served


@pytest.fixture(scope="module")
def annotated(endpoint: FakeEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("annotated")
    config = recipe(folder, endpoint.base_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
        patch.setenv("OPENAI_API_KEY", "test-key")
        assert branchwise("annotate", folder / "run", "--config", config) == 0
    return folder / "run"


@pytest.fixture
def run(annotated: Path, tmp_path: Path) -> Path:
    """A copy of the annotated run, which the test may change."""
    return Path(shutil.copytree(annotated, tmp_path / "run"))


def rows_of(run: Path) -> dict[tuple[str, int], FreshRollouts]:
    rows = table_to_records(read_parts(run, "survival"), FreshRollouts)
    found = {(row.tree_id, row.node_id): row for row in rows}
    assert len(found) == len(rows), "a node has several rows"
    return found


def diagnosis(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "diagnosis.json").read_text())
    return found


def test_both_sides_of_a_sample_are_rolled_out_once(run: Path, endpoint: FakeEndpoint) -> None:
    made = len(endpoint.requests)
    assert branchwise("diagnose", run, "--sample", 4, "--rollouts", 3) == 0
    rows, spent = rows_of(run), len(endpoint.requests)
    assert spent > made
    assert len(rows) in range(5, 9), "two sides per pair, some of them shared"
    terminal = {
        (node.tree_id, node.node_id): node.terminal
        for node in table_to_records(read_parts(run, "trees"), TreeNode)
    }
    assert all(len(row.rollouts) == (1 if terminal[key] else 3) for key, row in rows.items())
    found = diagnosis(run)
    assert found["survival"]["all"][0]["pairs"] == 4
    assert sum(row["pairs"] for row in found["survival"]["depth"]) == 4
    assert "| label survival |" in (run / "diagnosis.md").read_text()
    # A smaller sample is stored already. For a larger one, only the new rollouts are paid.
    assert branchwise("diagnose", run, "--sample", 2, "--rollouts", 3) == 0
    assert len(endpoint.requests) == spent
    assert branchwise("diagnose", run, "--sample", 4, "--rollouts", 5) == 0
    assert spent < len(endpoint.requests)
    fresh = [json.dumps(request, sort_keys=True) for request in endpoint.requests[made:]]
    assert len(set(fresh)) == len(fresh), "no draw is paid for twice"
    assert all(
        row.rollouts[:3] == rows[key].rollouts for key, row in longest(run).items() if key in rows
    ), "the first draws changed"


def test_fresh_rollouts_use_the_price_given_and_stop_at_its_limit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    price = ("--set", "policy.price_per_million={input: 1000, output: 1000}")
    assert branchwise("diagnose", run, *price, "--set", "limits.max_usd=0.05") == 3
    printed = capsys.readouterr().out
    assert "limits.max_usd 0.05 reached" in printed
    assert "limits.max_usd does not count" in printed, "the calls of the trees had no price"


def longest(run: Path) -> dict[tuple[str, int], FreshRollouts]:
    rows = table_to_records(read_parts(run, "survival"), FreshRollouts)
    rows.sort(key=lambda row: len(row.rollouts))
    return {(row.tree_id, row.node_id): row for row in rows}


def test_fresh_rollouts_are_not_the_draws_of_the_tree(run: Path) -> None:
    assert branchwise("diagnose", run, "--sample", 99, "--rollouts", 4) == 0
    nodes = table_to_records(read_parts(run, "trees"), TreeNode)
    own = {(node.tree_id, node.node_id): node.rollouts for node in nodes if node.rollouts}
    rolled = {key: row.rollouts for key, row in rows_of(run).items() if key in own}
    assert rolled
    differing = [rolled[key][0].trajectory != own[key][0].trajectory for key in rolled]
    # The policy is one of few words, so some trajectories are equal by chance.
    assert sum(differing) > len(differing) / 2


def test_an_interrupted_diagnosis_resumes(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, asked = run.with_name("whole"), ("--sample", 4, "--rollouts", 3)
    shutil.copytree(run, whole)
    made = len(endpoint.requests)
    assert branchwise("diagnose", whole, *asked) == 0
    needed = len(endpoint.requests) - made
    with Ledger(run / "ledger.sqlite") as ledger:
        spent = ledger.totals()
    limit = spent.input_tokens + spent.output_tokens + 1  # reached with the first replies
    assert branchwise("diagnose", run, *asked, "--set", f"limits.max_tokens={limit}") == 3
    assert f"stopped: limits.max_tokens {limit:,} reached" in capsys.readouterr().out
    assert made + needed < len(endpoint.requests) < made + 2 * needed
    assert not (run / "diagnosis.json").exists(), "a partial sample must not give a diagnosis"
    assert branchwise("diagnose", run, *asked) == 0
    assert len(endpoint.requests) == made + 2 * needed
    assert rows_of(run) == rows_of(whole)


def test_rollouts_that_were_not_committed_are_replayed(run: Path, endpoint: FakeEndpoint) -> None:
    assert branchwise("diagnose", run, "--sample", 4) == 0
    made, before = len(endpoint.requests), rows_of(run)
    # As after a kill before the commit: the rows are missing, but the calls are in the ledger.
    manifest = load_manifest(run)
    remove_parts(run, manifest.of("survival"))
    assert branchwise("diagnose", run, "--sample", 4) == 0
    assert len(endpoint.requests) == made
    assert rows_of(run) == before


def test_trees_whose_rollouts_fail_are_counted_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused: list[str] = []

    def unlucky(request: dict[str, Any]) -> Any:
        asked = request["messages"][-1]["content"]
        return failure(400, "no") if any(text in asked for text in refused) else policy(request)

    run = tmp_path / "run"
    with serving(unlucky) as endpoint:
        branchwise("annotate", run, "--config", recipe(tmp_path, endpoint.base_url))
        pairs = table_to_records(read_parts(run, "pairs"), Pair)
        refused.append(pairs[0].question)
        assert branchwise("diagnose", run, "--sample", 99, "--rollouts", 2) == 4
    trees = len({pair.tree_id for pair in pairs})
    told = f"1 of {trees} trees could not be rolled out: RefusedRequest 1"
    assert told in capsys.readouterr().out
    judged = sum(pair.question_id != pairs[0].question_id for pair in pairs)
    assert diagnosis(run)["survival"]["all"][0]["pairs"] == judged


def test_diagnose_with_no_model_makes_no_engine(
    run: Path, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_engine(*arguments: object, **named: object) -> None:
        raise AssertionError("an engine was made")

    monkeypatch.setattr("branchwise.runs.factories.engine_for", no_engine)
    assert branchwise("diagnose", run, "--no-model") == 0
    found = diagnosis(run)
    assert found["survival"] == {}
    assert found["pairs"]["pairs"] == load_manifest(run).rows("pairs")
    assert found["trees"]["questions"] == 6


def test_diagnose_of_a_relabelling_uses_its_own_pairs(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert branchwise("relabel", run, "--label", "strict", "--set", "pairs.min_gap=0.2") == 0
    assert branchwise("diagnose", run, "--label", "strict", "--sample", 3, "--rollouts", 2) == 0
    found = diagnosis(run / "relabelled" / "strict")
    assert found["pairs"]["pairs"] == load_manifest(run).rows("relabelled/strict/pairs")
    assert found["pairs"]["gaps"][0] >= 0.2
    assert branchwise("diagnose", run, "--label", "strikt", "--no-model") == 2
    assert "--label strikt: " in capsys.readouterr().out


def test_fresh_rollouts_are_valued_with_the_rewards_of_the_labelling(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = ("--label", "halved", "--sample", 50, "--rollouts", 2)
    assert branchwise("relabel", run, "--label", "halved", "--set", "rewards.alpha=0.5") == 0
    assert branchwise("diagnose", run, *sampled) == 0
    (judged,) = diagnosis(run / "relabelled" / "halved")["survival"]["all"]
    pairs = table_to_records(read_parts(run, "relabelled/halved/pairs"), Pair)
    fresh, recipe = stored_fresh(existing_run(run)), existing_run(run).recipe
    gap_at = {}
    for alpha in (0.5, 0.9):
        rewards = recipe.rewards.model_copy(update={"alpha": alpha})
        worth = recipe.model_copy(update={"rewards": rewards}).scheme.rollout_value
        gap_at[alpha] = survival_table(pairs, fresh, worth)[0].fresh_gap
    assert judged["fresh_gap"] == pytest.approx(gap_at[0.5])
    assert gap_at[0.5] != pytest.approx(gap_at[0.9], abs=1e-3)
    (run / "relabelled" / "halved" / "labelling.yaml").unlink()
    capsys.readouterr()
    assert branchwise("diagnose", run, *sampled) == 2
    assert "rerun `branchwise relabel --label halved`" in capsys.readouterr().out


def test_a_run_without_pairs_is_reported_without_new_calls(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert branchwise("relabel", run, "--label", "none", "--set", "pairs.min_gap=0.99") == 0
    made = len(endpoint.requests)
    assert branchwise("diagnose", run, "--label", "none") == 0
    assert "nothing to train on" in capsys.readouterr().out
    assert len(endpoint.requests) == made
    assert diagnosis(run / "relabelled" / "none")["conclusion"].startswith("training on this run")


def test_an_imported_run_has_only_findings_about_its_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = recipe(tmp_path, "http://127.0.0.1:1/v1"), tmp_path / "imported"
    prompt = ({"role": "system", "content": "s"}, {"role": "user", "content": "Question: q"})
    write_proguide(tmp_path / "pairs.json", [a_pair(prompt=prompt)])
    branchwise("import-pairs", run, "--config", config, "--file", tmp_path / "pairs.json")
    assert branchwise("diagnose", run) == 0
    assert "an imported run: its labels cannot be checked" in capsys.readouterr().out
    told = {one["what"] for one in diagnosis(run)["findings"]}
    assert "length bias" in told
    assert not told & {"reward gap", "one-outcome pairs", "label survival"}


def trained(folder: Path, kl: float, margin: float) -> Path:
    folder.mkdir(parents=True)
    lines = [{"step": 1, "loss": 0.693, "kl": 0.0, "margin": 0.0, "accuracy": 0.0}]
    lines += [
        {"step": step, "loss": 0.6, "kl": kl, "margin": margin, "accuracy": 0.8}
        for step in range(2, 12)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_diagnose_reads_the_metrics_of_the_model_of_the_run(tmp_path: Path, run: Path) -> None:
    trained(tmp_path / "models" / "run" / "dpo", kl=0.5, margin=0.3)
    assert branchwise("diagnose", run, "--no-model") == 0
    assert diagnosis(run)["training"] == {
        "steps": 11,
        "first_loss": pytest.approx((0.693 + 0.6 + 0.6) / 3),  # a quarter of the steps
        "loss": 0.6,
        "kl": 0.5,
        "margin": pytest.approx(0.3),
        "accuracy": pytest.approx(0.8),
        "first_reward": None,
        "reward": None,
    }
    assert branchwise("diagnose", run, "--no-model", "--model", "elsewhere") == 2


@pytest.mark.parametrize(
    ("kl", "margin", "verdicts"),
    [
        (0.5, 0.3, "good good"),
        (0.001, 0.003, "bad good"),
        (0.001, 0.3, "good good"),
        (-0.2, 0.003, "good good"),
        (9.0, -0.1, "watch bad"),
    ],
)
def test_verdicts_on_training_depend_on_kl_and_margin(
    tmp_path: Path, kl: float, margin: float, verdicts: str
) -> None:
    moved = movement_of(trained(tmp_path / "model", kl, margin))
    assert moved is not None
    _, *judged = (one.verdict for one in training_findings(moved))
    assert " ".join(judged) == verdicts


def test_movement_is_averaged_over_more_than_the_last_batch(tmp_path: Path) -> None:
    folder = trained(tmp_path / "model", kl=0.4, margin=0.2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 12, "loss": 0.9, "kl": -0.5, "margin": -0.1}) + "\n")
    moved = movement_of(folder)
    assert moved is not None
    assert (moved.kl, moved.margin) == (pytest.approx(0.1), pytest.approx(0.1))


@pytest.mark.parametrize(("first", "verdict"), [(0.7, "good"), (0.5, "watch")])
def test_a_loss_that_did_not_fall_is_only_a_warning(first: float, verdict: str) -> None:
    moved = PolicyShift(40, first_loss=first, loss=0.6, kl=0.5, margin=0.3, accuracy=0.8)
    loss = next(training_findings(moved))
    assert (loss.what, loss.verdict) == ("training loss", verdict)


def survived(decided: float, low: float, high: float, rollout_gap: float = 0.15) -> SurvivalRow:
    kept = (decided, 1 - decided, 0.0, (low, high), decided, (low, high), 0.5)
    return SurvivalRow(
        "all", 40, 30, *kept, 0.2, rollout_gap, (rollout_gap - 0.05, rollout_gap + 0.05)
    )


@pytest.mark.parametrize(
    ("row", "verdict", "advice"),
    [
        (survived(0.9, 0.8, 0.97), "good", "usual"),
        (survived(0.7, 0.6, 0.8), "watch", "min_gap"),
        (survived(0.7, 0.4, 0.9), "watch", "--sample"),
        (survived(0.5, 0.4, 0.6), "bad", "min_gap"),
        (survived(0.9, 0.8, 0.97, rollout_gap=0.09), "watch", "a larger base"),
        (survived(0.7, 0.6, 0.8, rollout_gap=0.09), "watch", "min_gap"),
        (None, "watch", "--sample"),
    ],
)
def test_survival_verdict_and_advice(row: SurvivalRow | None, verdict: str, advice: str) -> None:
    finding = survival_finding(row, 40)
    assert finding.verdict == verdict
    assert advice in finding.advice


def test_silent_questions_are_a_problem_unless_rewards_are_returns() -> None:
    trees = TreeFigures(
        questions=10, trees=10, states=50, spread=0.5, flat=0.1, right=0.5, wrong=0.3,
        invalid_actions=0.0, invalid_rollouts=None,
    )  # fmt: skip
    for returns, verdict in ((False, "bad"), (True, "good")):
        found = {one.what: one for one in tree_findings(trees, 9, returns=returns)}
        assert found["silent questions"].verdict == verdict


def test_the_conclusion_follows_the_worst_finding() -> None:
    many = [a_pair(question_id=f"q{n}", pair_id=f"p{n}") for n in range(FEW_PAIRS)]
    findings = list(pair_findings(pair_figures(many[:3])))
    assert conclusion(findings).startswith("training on this run is unlikely to help")
    assert next(pair_findings(pair_figures(many))).verdict == "good"


def rolled_out(run: Path, pair: Pair, right: dict[int, bool]) -> None:
    """Stores one fresh rollout, right or wrong, for each node of a pair."""
    rows = [
        FreshRollouts(
            tree_id=pair.tree_id,
            question_id=pair.question_id,
            source=pair.source,
            node_id=node,
            seed=0,
            temperature=existing_run(run).recipe.policy.temperature,
            rollouts=(
                Rollout(
                    draw=0,
                    answer=pair.answers[0] if is_right else "none of them",
                    em=float(is_right),
                    f1=float(is_right),
                    steps=2,
                    forced=False,
                    tokens=5,
                    stop_reason="",
                ),
            ),
        )
        for node, is_right in right.items()
    ]
    content = rows_to_table(rows, schema_of("survival"), existing_run(run).id)
    number = len(load_manifest(run).of("survival"))
    add_parts(run, [write_part(run, "survival", content, number)])


def test_confirmed_relabelling_keeps_pairs_that_fresh_rollouts_confirm(
    run: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    confirmed = ("--label", "confirmed", "--set", "pairs.confirmed=true")
    assert branchwise("relabel", run, *confirmed) == 2
    assert "branchwise diagnose --sample N" in capsys.readouterr().out
    pairs = table_to_records(read_parts(run, "pairs"), Pair)
    first, *_ = pairs
    apart = {first.chosen_node, first.rejected_node}
    other = next(
        pair
        for pair in pairs
        if pair.tree_id != first.tree_id or apart.isdisjoint((pair.chosen_node, pair.rejected_node))
    )
    ended = {first.chosen_node: True, first.rejected_node: False}
    turned = {other.chosen_node: False, other.rejected_node: True}
    rolled_out(run, first, ended)
    rolled_out(run, other, turned)
    capsys.readouterr()
    assert branchwise("relabel", run, *confirmed, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    every = table_to_records(read_parts(run, "pairs"), Pair)
    kept = table_to_records(read_parts(run, "relabelled/confirmed/pairs"), Pair)
    worth, fresh = existing_run(run).recipe.scheme.rollout_value, longest(run)
    said = {pair.pair_id: order_verdict(pair, fresh, worth) for pair in every}
    assert {pair.pair_id for pair in kept} == {i for i, held in said.items() if held == "kept"}
    told = Counter(held for held in said.values())
    assert (told["kept"], told[None]) == (found["pairs"], found["dropped"]["fresh_missing"])
    assert found["dropped"].get("fresh_tied", 0) == told["tied"]
    assert found["dropped"].get("fresh_reversed", 0) == told["reversed"]
    assert told["kept"]
    assert told["reversed"]
    assert told[None], "most pairs have no fresh rollouts"


def test_confirmed_pairs_are_refused_before_trees_are_grown(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = recipe(tmp_path, endpoint.base_url), tmp_path / "new"
    made = len(endpoint.requests)
    more = ("--config", config, "--set", "pairs.confirmed=true")
    assert branchwise("annotate", folder, *more) == 2
    assert "branchwise relabel --set pairs.confirmed=true" in capsys.readouterr().out
    assert not folder.exists()
    assert len(endpoint.requests) == made
