"""Run folders on network file systems: a note before the first call, and no run without locks."""

from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from loopback import serving
from mount_table import mount_share, refuse_locks
from tiny_dataset import policy, recipe

pytestmark = pytest.mark.usefixtures("own_cache")

ROOT = Path(__file__).resolve().parents[2]


def note(run: Path) -> str:
    """Returns the beginning of the note."""
    return f"note: {run} is on a network file system (nfs4, mounted at {run.parent}), where locks "


def test_a_stage_names_the_file_system_and_the_remedy_before_its_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, printed = tmp_path / "share" / "run", list[str]()
    mount_share(monkeypatch, run.parent, "nfs4")

    def reply(request: dict[str, Any]) -> str:
        if not printed:
            printed.append(capsys.readouterr().out)
        return policy(request)

    with serving(reply) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        exam = run.with_name("exam")  # its questions must not have been annotated
        folders = {"annotate": run, "diagnose": run, "select": run, "eval": exam}
        for stage, folder in folders.items():
            printed.clear()
            branchwise(stage, config, folder)
            assert printed, f"{stage} made no call"
            assert note(folder) in printed[0], stage
            assert "keep the run on a local disk, and copy it afterwards" in printed[0]
        capsys.readouterr()
        assert branchwise("doctor", config, run) == 0
        assert note(run) in capsys.readouterr().out

        mount_share(monkeypatch, run.parent, "xfs")
        assert branchwise("annotate", config, run.with_name("other")) == 0
    assert "file system" not in capsys.readouterr().out


def test_a_training_with_rollouts_names_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "share" / "run"
    mount_share(monkeypatch, run.parent, "nfs4")
    config = ROOT / "configs" / "arena.yaml"
    words = ("--set", "policy.model=packaged", "--limit", "4", "--dry-run")
    assert branchwise("train-grpo", config, run, *words) == 0
    assert note(run) in capsys.readouterr().out


def test_without_locks_a_stage_makes_no_call_and_starts_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(policy) as endpoint:
        config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
        with monkeypatch.context() as without_locks:
            refuse_locks(without_locks)
            assert branchwise("annotate", config, run) == 1
        printed = capsys.readouterr().out
        assert f"cannot lock {run / 'ledger.sqlite.lock'}: No locks available. " in printed
        assert "keep the run on a local disk, and copy it afterwards" in printed
        assert not endpoint.requests
        assert [file.name for file in run.iterdir()] == ["ledger.sqlite.lock"]
        assert branchwise("annotate", config, run) == 0, "the folder can be used once it has locks"
