"""The ledger's mark: a ledger that lost calls is reported before a call is paid for twice."""

import shutil
from pathlib import Path

import pytest
from sample_records import a_call

from branchwise.base.errors import StorageError
from branchwise.storage.ledger import Ledger
from branchwise.storage.ledger_check import check
from branchwise.storage.ledger_mark import mark_path
from branchwise.storage.ledger_rows import Call


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
def test_a_missing_or_emptied_ledger_is_reported_with_its_lost_calls(
    ledger: Path, emptied: bool
) -> None:
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


def test_removing_the_mark_allows_an_empty_ledger(ledger: Path) -> None:
    remove(ledger)
    mark_path(ledger).unlink()
    with Ledger(ledger) as opened:
        assert opened.totals().calls == 0


async def test_calls_lost_with_a_damaged_log_are_reported(tmp_path: Path) -> None:
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


async def test_an_intact_ledger_opens_and_accepts_calls(ledger: Path) -> None:
    with Ledger(ledger) as opened:
        for call in calls(4):
            await opened.put(call)
    assert int(mark_path(ledger).read_text()) == 4
    assert check(ledger).whole


@pytest.mark.parametrize("content", [b"", b"\0" * 21, b"three"])
def test_an_unreadable_mark_is_ignored(ledger: Path, content: bytes) -> None:
    mark_path(ledger).write_bytes(content)
    with Ledger(ledger) as opened:
        assert opened.totals().calls == 3
