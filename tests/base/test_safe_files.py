"""Each reader of a run or a model by itself, without the look that a stage takes beforehand."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_records import a_node
from strange_files import NOT_FOLDERS, Strange, folder, link, pipe, sparse

from base.errors import ConfigError, StorageError
from base.lock import RunLock
from base.safe_files import open_inside, read_inside, read_named, reject_special_files
from rewards.reward_model.heads import Heads
from rewards.reward_model.model import read_record
from runs.folder import existing_run, noted_inputs
from runs.studies.journal import Event, Journal
from storage.ledger import Ledger
from storage.manifest import add_parts, load_manifest, verify_manifest
from storage.parts import read_parts, write_part
from storage.schemas import TREES, rows_to_table
from storage.views import connect
from training.checkpoints import latest_checkpoint
from training.curves import read_metrics

READERS: dict[str, Callable[[Path], object]] = {
    "config.yaml": existing_run,
    "provenance.json": noted_inputs,
    "manifest.json": load_manifest,
    "trees/part-00000.parquet": lambda run: read_parts(run, "trees"),
    "trees": verify_manifest,
    "ledger.sqlite": lambda run: Ledger(run / "ledger.sqlite").close(),
    "ledger.sqlite-wal": lambda run: Ledger(run / "ledger.sqlite").close(),
    "ledger.sqlite.lock": lambda run: RunLock(run / "ledger.sqlite.lock").release(),
    "journal.jsonl": lambda run: list(Journal(run / "journal.jsonl").events()),
    "checkpoints.json": lambda run: latest_checkpoint(run, "this"),
    "metrics.jsonl": read_metrics,
    "training.json": read_record,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    add_parts(run, [write_part(run, "trees", rows_to_table([a_node()], TREES, "run"), 0)])
    return run


@pytest.mark.parametrize(
    ("name", "strange"),
    [
        *((name, link) for name in READERS),
        *((name, folder) for name in READERS if name != "trees"),
        *(("manifest.json", strange) for strange in NOT_FOLDERS.values() if strange != link),
    ],
)
def test_a_reader_opens_regular_files_only(
    name: str, strange: Strange, run: Path, tmp_path: Path
) -> None:
    strange(run / name, tmp_path / "outside")
    with pytest.raises(ConfigError, match=f"{name}: is a"):
        READERS[name](run)


def test_a_reader_takes_no_more_than_such_a_file_ever_has(run: Path, tmp_path: Path) -> None:
    for name, read in READERS.items():
        if name.endswith((".yaml", ".json", ".jsonl")):
            sparse(run / name, tmp_path / "outside")
            with pytest.raises(ConfigError, match=rf"{name}: has 10,737,418,240 bytes"):
                read(run)
            (run / name).unlink()


def test_views_read_nothing_through_a_link(run: Path, tmp_path: Path) -> None:
    link(run / "trees", tmp_path / "outside")
    with pytest.raises(ConfigError, match="trees: is a symbolic link"):
        connect(run)


def test_a_lock_empties_nothing_but_locks(tmp_path: Path) -> None:
    lock, letters = tmp_path / "run.lock", tmp_path / "letters"
    letters.write_text("Dear friend")
    lock.symlink_to(letters)
    with pytest.raises(ConfigError, match="symbolic link"):
        RunLock(lock)
    lock.unlink()
    os.link(letters, lock)
    with pytest.raises(ConfigError, match="is not a Branchwise lock file"):
        RunLock(lock)
    assert letters.read_text() == "Dear friend"
    lock.unlink()
    lock.write_text("123")  # of a process that is gone
    RunLock(lock).release()
    assert lock.read_text() == str(os.getpid())


@pytest.mark.parametrize("name", ["../letters", "/etc/hostname", "a/../../letters", "", "a\0b"])
def test_a_name_stays_inside_its_folder(name: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("Dear friend")
    with pytest.raises(ConfigError, match="inside this folder"):
        open_inside(run, name)
    parts = [{"table": "trees", "path": name, "rows": 1, "sha256": "0"}]
    (run / "manifest.json").write_text(json.dumps({"parts": parts}))
    with pytest.raises(StorageError, match="must be inside the run folder"):
        load_manifest(run)


def test_a_missing_file_is_missing(run: Path) -> None:
    for name in ("nothing", "nothing/here"):
        with pytest.raises(FileNotFoundError):
            read_inside(run, name)
    with pytest.raises(NotADirectoryError):
        read_inside(run, "manifest.json/here")


def test_the_folder_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(run)
    assert read_parts(tmp_path / "linked", "trees").num_rows == 1
    reject_special_files(tmp_path / "linked")
    with pytest.raises(ConfigError, match="linked: is a symbolic link"):
        reject_special_files(tmp_path / "linked", linked=False)


def test_what_a_person_names_may_be_a_link_or_a_shell_s_stream(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("name: x")
    (tmp_path / "linked").symlink_to(tmp_path / "file")
    assert read_named(tmp_path / "linked") == b"name: x"
    reading, writing = os.pipe()
    os.write(writing, b"name: x")
    os.close(writing)
    assert read_named(Path(f"/dev/fd/{reading}")) == b"name: x"
    os.close(reading)
    pipe(tmp_path / "pipe", tmp_path / "outside")
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="not a regular file"):
            read_named(endless)


def test_a_journal_from_elsewhere_is_read_as_far_as_it_is_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    event = Event("key", "annotate", "done", totals={"pairs": 3})
    journal.note(event)
    lines = (
        "[" * 100_000,
        '{"key": 1, "command": [], "event": "done"}',
        '{"seconds": ' + "9" * 5000,
    )
    with journal.path.open("a") as file:
        file.writelines(f"{line}\n" for line in (*lines, json.dumps({"key": "k", "totals": [1]})))
    assert list(journal.events()) == [event]


def test_a_ledger_with_programs_in_it_is_none(tmp_path: Path) -> None:
    import sqlite3

    Ledger(tmp_path / "ledger.sqlite").close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        database.execute("CREATE TRIGGER paid AFTER INSERT ON calls BEGIN DELETE FROM calls; END")
    with pytest.raises(StorageError, match="views or triggers"):
        Ledger(tmp_path / "ledger.sqlite")


def test_heads_are_no_pipe(tmp_path: Path) -> None:
    pipe(tmp_path / "heads.safetensors", tmp_path / "outside")
    with pytest.raises(ConfigError, match="is a pipe"):
        Heads.load(tmp_path / "heads.safetensors")


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"step": ' + "9" * 5000 + "}",
        "[1]",
        '{"step": "1"}',
        '{"step": 1, "kl": "x"}',
    ],
)
def test_a_curve_from_elsewhere_is_one_or_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": NaN}}\n{line}\n')
    with pytest.raises(StorageError, match="cannot read the curve of the training"):
        read_metrics(tmp_path)
