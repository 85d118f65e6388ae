"""The ledger: awaited writes survive, one writer at a time, totals over all attempts."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import a_call

from branchwise.base.errors import ConfigError, StorageError
from branchwise.storage.ledger import Ledger, StoredKeys
from branchwise.storage.ledger_check import LEDGER_VERSION
from branchwise.storage.ledger_rows import Totals

REPOSITORY = Path(__file__).resolve().parents[2]

CALL = a_call()


def _child(script: str, path: Path) -> "subprocess.Popen[bytes]":
    folders = (REPOSITORY, REPOSITORY / "tests" / "support", Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )


def test_rows_are_read_back_and_totals_are_cumulative(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger.sqlite"

    async def first() -> None:
        with Ledger(path) as ledger:
            await asyncio.gather(
                ledger.put(CALL), *(ledger.put(replace(CALL, key=f"n{i}")) for i in range(500))
            )
            assert ledger.get("k1") == CALL
            assert ledger.get("absent") is None
            await ledger.put(replace(CALL, key="free", cost_usd=None))
            await ledger.put(replace(CALL, key="failed", error="it broke", cost_usd=None))

    asyncio.run(first())
    with Ledger(path) as ledger:
        assert ledger.get("k1") == CALL
        assert ledger.totals() == Totals(502, 5020, 2008, 2510, 501 * 0.25, 1)


async def test_a_reply_replaces_an_error_but_not_an_earlier_reply(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        await ledger.put(replace(CALL, error="it broke", text=""))
        assert ledger.get("k1") is None
        await ledger.put(CALL)
        await ledger.put(replace(CALL, text="another"))
        assert ledger.get("k1") == CALL
        assert ledger.totals().calls == 1
        await ledger.put(replace(CALL, key="k2", text="cut \ud83d"))
        stored = ledger.get("k2")
        assert stored is not None
        assert stored.text == "cut \ufffd"


async def test_one_bad_row_fails_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        results = await asyncio.gather(
            ledger.put(CALL),
            ledger.put(replace(CALL, key="bad", draw=2**70)),
            ledger.put(replace(CALL, key="k2")),
            return_exceptions=True,
        )
        assert [type(r) for r in results] == [type(None), StorageError, type(None)]
        assert str(tmp_path / "l") in str(results[1])
        assert "disk" not in str(results[1])
        assert ledger.totals().calls == 2
        assert ledger.get("k2") is not None


KILLED = """
import asyncio, sys
from pathlib import Path
from dataclasses import replace
from branchwise.storage.ledger import Ledger
from test_ledger import CALL

async def main():
    ledger = Ledger(Path(sys.argv[1]))
    for i in range(3):
        await ledger.put(replace(CALL, key=str(i)))
        print(i, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def test_awaited_calls_survive_a_kill_and_the_lock_is_released(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with _child(KILLED, path) as child:
        assert child.stdout is not None
        for i in range(3):
            assert child.stdout.readline().strip() == str(i).encode()
        with pytest.raises(ConfigError, match=f"in use by process {child.pid}"):
            Ledger(path)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    with Ledger(path) as ledger:
        assert ledger.totals().calls == 3
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"):
            Ledger(path)
    Ledger(path).close()


FULL_DISK = """
import asyncio, resource, signal, sys
from dataclasses import replace
from pathlib import Path
from branchwise.base.errors import StorageError
from branchwise.storage.ledger import Ledger
from test_ledger import CALL

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Ledger(Path(sys.argv[1])) as ledger:
        await ledger.put(CALL)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            await ledger.put(replace(CALL, key="big", text="x" * 1_000_000))
        except StorageError as error:
            print(error, flush=True)
        assert ledger.get("big") is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await ledger.put(replace(CALL, key="after"))

asyncio.run(main())
"""


def test_a_full_disk_is_reported_and_stored_calls_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with _child(FULL_DISK, path) as child:
        output, _ = child.communicate()
    assert child.returncode == 0
    assert str(path) in output.decode()
    assert "Free disk space or fix the disk" in output.decode()
    with Ledger(path) as ledger:
        assert ledger.get("k1") == CALL
        assert ledger.get("after") is not None


@pytest.mark.parametrize("damage", [("cost_usd", "cost_usf"), ("calls", "callr"), ("NULL", "NULM")])
async def test_a_damaged_schema_is_not_reported_as_a_full_disk(
    damage: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        await ledger.put(CALL)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole, damaged = (word.encode() for word in damage)
    path.write_bytes(path.read_bytes().replace(whole, damaged))
    with pytest.raises(StorageError, match=r"Restore it from a copy") as told:
        Ledger(path)
    assert "disk" not in str(told.value).replace("database disk image", "")


async def test_a_missing_table_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        with closing(sqlite3.connect(tmp_path / "l")) as other:
            other.execute("DROP TABLE calls")
        with pytest.raises(StorageError, match=r"no such table.*Restore it from a copy"):
            await ledger.put(CALL)


def test_foreign_files_and_ledgers_of_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database, but long enough to be looked at " * 40)
    with pytest.raises(StorageError, match=r"is not a database.*move"):
        Ledger(path)
    path.unlink()
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {LEDGER_VERSION + 1}")
    newer.close()
    with pytest.raises(StorageError, match=r"version \d+, this Branchwise reads \d+"):
        Ledger(path)


async def test_calls_stored_before_and_after_opening_are_returned(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        await ledger.put(CALL)
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.get_for_question("q1", "k1") == CALL
        assert ledger.get_for_question("q1", "k2") is None
        await ledger.put(replace(CALL, key="k2", error="it broke"))
        assert ledger.get_for_question("q1", "k2") is None
        await ledger.put(replace(CALL, key="k2"))
        assert ledger.get_for_question("q1", "k2") == replace(CALL, key="k2")


async def test_a_call_is_stored_even_if_its_task_is_cancelled(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.get_for_question("q1", "k1") is None
        putting = asyncio.ensure_future(ledger.put(CALL))
        await asyncio.sleep(0)
        putting.cancel()
        await ledger.put(replace(CALL, key="k2"))  # after it in the same queue
        assert ledger.get_for_question("q1", "k1") == CALL


def test_the_keys_of_a_question_are_reread_only_after_eviction() -> None:
    stored: dict[str, set[str]] = {"q1": {"a"}, "q2": {"b"}, "q3": set()}
    read: list[str] = []

    def keys_of(question_id: str) -> set[str]:
        read.append(question_id)
        return stored[question_id]

    calls = StoredKeys(keys_of, questions=2)
    assert calls.holds("q1", "a")
    assert not calls.holds("q1", "b")
    assert calls.holds("q2", "b")
    assert read == ["q1", "q2"]
    assert not calls.holds("q3", "a")  # evicts q1
    stored["q1"].add("c")
    calls.add("q1", "c")  # no effect, because q1 was evicted
    assert calls.holds("q1", "c")
    assert read == ["q1", "q2", "q3", "q1"]
    calls.add("q1", "d")
    assert calls.holds("q1", "d")


def test_a_call_stored_while_its_question_is_read_is_not_missed() -> None:
    def keys_of(question_id: str) -> set[str]:
        # The writing thread, just after the rows were read.
        calls.add(question_id, "new")
        return {"old"}

    calls = StoredKeys(keys_of)
    assert calls.holds("q1", "new")
