"""`--workers`: several processes annotate one run."""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from evo_world import EVO
from fake_endpoint import failure
from loopback import serving
from tiny_dataset import policy, recipe

from runs.stage import Gate
from storage.ledger import Ledger
from storage.manifest import verify_manifest
from storage.parts import question_ids, read_parts
from storage.records import Pair
from storage.schemas import table_to_records

pytestmark = pytest.mark.usefixtures("own_cache")


def rows(run: Path) -> list[Pair]:
    found = table_to_records(read_parts(run, "pairs"), Pair)
    return sorted(found, key=lambda p: (p.question_id, p.pair_id, p.chosen_node, p.rejected_node))


def test_three_workers_give_the_rows_of_one_process_with_as_many_calls(tmp_path: Path) -> None:
    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        alone, shared = tmp_path / "one" / "run", tmp_path / "three" / "run"
        assert branchwise("annotate", config, alone) == 0
        made = len(endpoint.requests)
        assert branchwise("annotate", config, shared, "--workers", "3") == 0
        assert len(endpoint.requests) == 2 * made
        assert branchwise("annotate", config, shared, "--workers", "3") == 0
        assert len(endpoint.requests) == 2 * made
    assert rows(shared) == rows(alone)
    assert verify_manifest(shared) == []
    with Ledger(shared / "ledger.sqlite") as ledger:
        assert Counter(row.status for row in ledger.questions()) == {"done": 6}
        assert ledger.totals().calls == made


def test_a_limit_stops_all_workers_and_the_run_can_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed, limit_reached = threading.Event(), Gate.limit_reached

    def noticing(gate: Gate) -> str | None:
        reached = limit_reached(gate)
        if reached is not None:
            noticed.set()
        return reached

    def waiting(request: dict[str, Any]) -> str:
        if len(endpoint.requests) > 2:  # so a worker has stored its first answer
            assert noticed.wait(60)
        return policy(request)

    monkeypatch.setattr(Gate, "limit_reached", noticing)
    with serving(waiting) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        limit = ("--set", "limits.max_tokens=10", "--set", "limits.max_concurrency=1")
        assert branchwise("annotate", config, run, "--workers", "2", *limit) == 3
        assert "max_tokens" in capsys.readouterr().out
        made = len(endpoint.requests)
        with Ledger(run / "ledger.sqlite") as ledger:
            assert ledger.totals().calls == made
        assert branchwise("annotate", config, run, "--workers", "2") == 0
        whole = tmp_path / "whole" / "run"
        assert branchwise("annotate", config, whole) == 0
        with Ledger(whole / "ledger.sqlite") as ledger:
            assert len(endpoint.requests) == 2 * ledger.totals().calls
    assert [p.pair_id for p in rows(run)] == [p.pair_id for p in rows(whole)]


def test_a_limit_that_the_last_call_reaches_stops_nothing(tmp_path: Path) -> None:
    with serving(policy) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        assert branchwise("annotate", config, run) == 0
        with Ledger(run / "ledger.sqlite") as ledger:
            spent = ledger.totals().input_tokens + ledger.totals().output_tokens
        again = tmp_path / "again" / "run"
        limit = ("--set", f"limits.max_tokens={spent}")
        assert branchwise("annotate", config, again, "--workers", "2", *limit) == 0


def test_a_fault_is_logged_once_and_finished_work_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def expiring(request: dict[str, Any]) -> Any:
        late = "currency" in request["messages"][-1]["content"]
        return failure(401, "the key has expired") if late else policy(request)

    with serving(expiring) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        one = ("--set", "limits.max_questions_in_flight=2")
        assert branchwise("annotate", config, run, "--workers", "2", *one) == 1
    told = capsys.readouterr().out
    assert told.count("answered 401") == 1
    assert "test-key" not in told
    kept = question_ids(run, "trees")
    assert kept
    assert "q3" not in kept
    assert verify_manifest(run) == []


def test_a_rejected_key_is_reported_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: failure(403, "not in your plan")) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("annotate", config, tmp_path / "run", "--workers", "2") == 1
    told = capsys.readouterr().out
    assert "the key in OPENAI_API_KEY cannot access this model" in told
    assert "Traceback" not in told


def test_a_killed_worker_is_reported_and_its_questions_stay_pending(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def deadly(request: dict[str, Any]) -> Any:
        if len(endpoint.requests) == 5:
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
        return policy(request)

    with serving(deadly) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        assert branchwise("annotate", config, run, "--workers", "2") == 1
        assert "signal 9" in capsys.readouterr().out
        assert branchwise("annotate", config, run, "--workers", "2") == 0
    assert len(question_ids(run, "trees")) == 6


def test_workers_require_an_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = {"engine": "openvino", "model": "packaged"}
    config = recipe(tmp_path, "", policy=local)
    assert branchwise("annotate", config, tmp_path / "run", "--workers", "2") == 2
    assert "--workers 2" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    verified = {**EVO, "verifier": local}
    config = recipe(tmp_path, "http://127.0.0.1:1/v1", **verified)
    assert branchwise("annotate", config, tmp_path / "run", "--workers", "2") == 2
    assert "openvino:packaged would be started once per worker" in capsys.readouterr().out
