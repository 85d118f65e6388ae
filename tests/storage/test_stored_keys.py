"""What the ledger knows without asking the disk: never less than what is stored."""

import asyncio
from dataclasses import replace
from pathlib import Path

from sample_records import a_call

from storage.ledger import Ledger
from storage.stored_keys import StoredKeys

CALL = a_call()


async def test_what_was_stored_before_and_meanwhile_is_recalled(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        await ledger.put(CALL)
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.recall("q1", "k1") == CALL
        assert ledger.recall("q1", "k2") is None
        await ledger.put(replace(CALL, key="k2", error="it broke"))
        assert ledger.recall("q1", "k2") is None
        await ledger.put(replace(CALL, key="k2"))
        assert ledger.recall("q1", "k2") == replace(CALL, key="k2")


async def test_a_call_whose_asker_went_away_is_recalled_all_the_same(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.recall("q1", "k1") is None
        putting = asyncio.ensure_future(ledger.put(CALL))
        await asyncio.sleep(0)
        putting.cancel()
        await ledger.put(replace(CALL, key="k2"))  # behind it in the same queue
        assert ledger.recall("q1", "k1") == CALL


def test_a_question_is_read_once_and_again_when_it_was_let_go() -> None:
    stored = {"q1": {"a"}, "q2": {"b"}, "q3": set()}
    read: list[str] = []

    def keys_of(question_id: str) -> set[str]:
        read.append(question_id)
        return stored[question_id]

    keys = StoredKeys(keys_of, questions=2)
    assert keys.holds("q1", "a")
    assert not keys.holds("q1", "b")
    assert keys.holds("q2", "b")
    assert read == ["q1", "q2"]
    assert not keys.holds("q3", "a")  # q1 is let go
    stored["q1"].add("c")
    keys.add("q1", "c")
    assert keys.holds("q1", "c")
    assert read == ["q1", "q2", "q3", "q1"]


def test_a_key_stored_while_its_question_is_read_is_not_missed() -> None:
    def keys_of(question_id: str) -> set[str]:
        keys.add(question_id, "new")  # the writing thread, just after the rows were read
        return {"old"}

    keys = StoredKeys(keys_of)
    assert keys.holds("q1", "new")
