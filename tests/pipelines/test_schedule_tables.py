"""`branchwise schedule`: weights of both stages by policy call, and silenced comparisons."""

import json
from pathlib import Path

import pytest

from branchwise.cli.command_line import parser, run_stage
from branchwise.runs.folder import check_run_folder


def schedule(run: Path, *more: str) -> int:
    words = ("schedule", "--run", str(run), *more)
    config = () if "--config" in more else ("--config", "configs/evo-rag.yaml")
    return run_stage(parser().parse_args([*words, *config]))


def rows_of(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().splitlines()]


def test_schedule_writes_the_weights_of_both_stages_by_policy_call(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert schedule(run, "--set", "agent.max_steps=4", "--set", "rewards.horizon=2") == 0
    head, *calls = rows_of(run / "study" / "schedule-refinement.csv")
    answer = head.index("answer")
    # Table 1: κ from 0.1 to 1.0 within T = 2 calls; later calls have the final weights.
    told = [(row[0], row[1], row[answer]) for row in calls]
    assert told == [
        ("0", "0.00", "0.100"),
        ("1", "0.50", "0.550"),
        ("2", "1.00", "1.000"),
        ("3", "1.00", "1.000"),
    ]
    first = rows_of(run / "study" / "schedule-discovery.csv")[1]
    assert first[head.index("retrieval")] == "2.000"
    assert (run / "study" / "schedule.svg").exists()
    assert (
        "Refinement: weights of the schedule time-dynamic"
        in (run / "study" / "schedule.md").read_text()
    )
    check_run_folder(run)  # the folder can still be used for a new run


def test_silenced_comparisons_are_counted_by_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schedule(tmp_path / "run", "--dry-run", "--json") == 0
    assert not (tmp_path / "run").exists()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    right_wrong = "a right answer, a wrong one"
    assert found["discovery"][right_wrong] == {"silenced": 9}, "κ is at most 0.1"
    assert found["refinement"][right_wrong] == {"silenced": 1, "kept": 8}
    wider = ("--dry-run", "--json", "--set", "pairs.min_gap=0.3")
    assert schedule(tmp_path / "run", *wider) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    assert found["refinement"][right_wrong] == {"silenced": 2, "kept": 7}


def test_a_recipe_of_another_reward_scheme_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schedule(tmp_path / "run", "--config", "configs/atlas.yaml") == 2
    assert "does not have a schedule" in capsys.readouterr().out
