"""Readers of run and model folders open only regular files of bounded size inside the folder."""

import json
import os
from pathlib import Path

import pytest
from strange_files import Strange, endless, link, pipe, sparse

from branchwise.base.errors import ConfigError, StorageError
from branchwise.base.safe_files import open_inside, read_inside, read_named, reject_special_files
from branchwise.rewards.reward_model.heads import Heads
from branchwise.runs.studies.journal import Event, Journal
from branchwise.storage.manifest import add_parts, load_manifest
from branchwise.training.curves import read_metrics


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    add_parts(run, [])
    return run


@pytest.mark.parametrize("strange", [link, endless])
def test_links_to_files_outside_the_folder_are_refused(
    strange: Strange, run: Path, tmp_path: Path
) -> None:
    strange(run / "manifest.json", tmp_path / "outside")
    with pytest.raises(ConfigError, match="inside this folder"):
        load_manifest(run)
    with pytest.raises(ConfigError, match=r"manifest\.json: is a symbolic link"):
        reject_special_files(run)


def test_pipes_and_files_of_absurd_size_are_refused(run: Path, tmp_path: Path) -> None:
    pipe(run / "manifest.json", tmp_path / "outside")
    with pytest.raises(ConfigError, match=r"manifest\.json: is a pipe"):
        load_manifest(run)
    with pytest.raises(ConfigError, match=r"manifest\.json: is a pipe"):
        reject_special_files(run)
    (run / "manifest.json").unlink()
    sparse(run / "manifest.json", tmp_path / "outside")
    with pytest.raises(ConfigError, match=r"manifest\.json: has 10,737,418,240 bytes"):
        load_manifest(run)


@pytest.mark.parametrize("name", ["../letters", "/etc/hostname", "a/../../letters"])
def test_a_name_that_leaves_its_folder_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("Dear friend")
    with pytest.raises(ConfigError, match="inside this folder"):
        open_inside(run, name)
    parts = [{"table": "trees", "path": name, "rows": 1, "sha256": "0"}]
    (run / "manifest.json").write_text(json.dumps({"parts": parts}))
    with pytest.raises(StorageError, match="must be inside the run folder"):
        load_manifest(run)


def test_a_missing_file_raises_file_not_found(run: Path) -> None:
    for name in ("nothing", "nothing/here"):
        with pytest.raises(FileNotFoundError):
            read_inside(run, name)


def test_the_run_folder_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(run)
    assert load_manifest(tmp_path / "linked").parts == ()
    reject_special_files(tmp_path / "linked")
    with pytest.raises(ConfigError, match="linked: is a symbolic link"):
        reject_special_files(tmp_path / "linked", linked=False)


def test_a_file_named_by_the_user_may_be_a_link_or_a_shell_stream(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("name: x")
    (tmp_path / "linked").symlink_to(tmp_path / "file")
    assert read_named(tmp_path / "linked") == b"name: x"
    reading, writing = os.pipe()
    os.write(writing, b"name: x")
    os.close(writing)
    assert read_named(Path(f"/dev/fd/{reading}")) == b"name: x"
    os.close(reading)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_named(Path("/dev/zero"))


def test_invalid_lines_of_a_journal_are_skipped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    event = Event("key", "annotate", "done", totals={"pairs": 3})
    journal.note(event)
    with journal.path.open("a") as file:
        file.write('{"key": 1, "command": [], "event": "done"}\n{"torn": \n')
    assert list(journal.events()) == [event]


def test_a_pipe_as_reward_model_heads_is_refused(tmp_path: Path) -> None:
    pipe(tmp_path / "heads.safetensors", tmp_path / "outside")
    with pytest.raises(ConfigError, match="is a pipe"):
        Heads.load(tmp_path / "heads.safetensors")


@pytest.mark.parametrize("line", ["[1]", '{"step": "1"}', '{"step": 1, "kl": "x"}'])
def test_an_invalid_training_curve_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": NaN}}\n{line}\n')
    with pytest.raises(StorageError, match="cannot read the curve of the training"):
        read_metrics(tmp_path)
