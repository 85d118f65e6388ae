"""A ledger that holds fewer calls than were stored is told before any call is paid for again."""

import shutil
from pathlib import Path

import pytest
from sample_records import a_call

from base.errors import StorageError
from storage.ledger import Ledger
from storage.ledger_check import check
from storage.ledger_mark import mark_path
from storage.ledger_rows import Call


def calls(number: int) -> list[Call]:
    return [a_call(key=f"key-{n}", path=f"tree/{n}") for n in range(number)]


@pytest.fixture
async def ledger(tmp_path: Path) -> Path:
    """A closed ledger with three calls."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as opened:
        for call in calls(3):
            await opened.put(call)
    return path


def copy_ledger(ledger: Path, folder: Path) -> None:
    for path in ledger.parent.glob("ledger.s*"):
        shutil.copy(path, folder)


def remove(ledger: Path) -> None:
    for path in ledger.parent.glob(f"{ledger.name}*"):
        path.unlink()


@pytest.mark.parametrize("emptied", [False, True])
def test_a_missing_or_new_ledger_lacks_its_calls(ledger: Path, emptied: bool) -> None:
    remove(ledger)
    if emptied:
        ledger.touch()
    told = check(ledger)
    assert not told.whole
    assert told.lost is not None
    assert "holds 0 calls, but at least 3 were stored" in told.lost
    for _ in range(2):
        with pytest.raises(StorageError, match=r"at least 3 .*remove .*ledger\.stored"):
            Ledger(ledger)


def test_who_removes_the_mark_pays_again(ledger: Path) -> None:
    remove(ledger)
    mark_path(ledger).unlink()
    with Ledger(ledger) as opened:
        assert opened.totals().calls == 0


async def test_calls_that_a_damaged_log_lost_are_missed(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    ledger = tmp_path / "ledger.sqlite"
    with Ledger(ledger) as opened:
        for call in calls(5):
            await opened.put(call)
        copy_ledger(ledger, killed)  # as a kill leaves it
    log = killed / "ledger.sqlite-wal"
    content = bytearray(log.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    log.write_bytes(content)
    with pytest.raises(StorageError, match="but at least 5 were stored"):
        Ledger(killed / "ledger.sqlite")


async def test_a_whole_ledger_is_opened_and_goes_on(ledger: Path) -> None:
    with Ledger(ledger) as opened:
        for call in calls(4):
            await opened.put(call)
    assert int(mark_path(ledger).read_text()) == 4
    assert check(ledger).whole


@pytest.mark.parametrize("content", [b"", b"\0" * 21, b"three"])
def test_a_mark_that_tells_nothing_is_ignored(ledger: Path, content: bytes) -> None:
    mark_path(ledger).write_bytes(content)
    with Ledger(ledger) as opened:
        assert opened.totals().calls == 3
