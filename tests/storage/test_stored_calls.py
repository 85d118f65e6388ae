"""What the ledger knows without asking the disk: never less than what is stored."""

import asyncio
from dataclasses import replace
from pathlib import Path

from sample_records import a_call

from storage.ledger import Ledger, StoredCalls
from storage.ledger_rows import Call

CALL = a_call()


async def test_what_was_stored_before_and_meanwhile_is_recalled(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        await ledger.put(CALL)
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.get_for_question("q1", "k1") == CALL
        assert ledger.get_for_question("q1", "k2") is None
        await ledger.put(replace(CALL, key="k2", error="it broke"))
        assert ledger.get_for_question("q1", "k2") is None
        await ledger.put(replace(CALL, key="k2"))
        assert ledger.get_for_question("q1", "k2") == replace(CALL, key="k2")


async def test_a_call_whose_asker_went_away_is_recalled_all_the_same(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.get_for_question("q1", "k1") is None
        putting = asyncio.ensure_future(ledger.put(CALL))
        await asyncio.sleep(0)
        putting.cancel()
        await ledger.put(replace(CALL, key="k2"))  # behind it in the same queue
        assert ledger.get_for_question("q1", "k1") == CALL


def test_a_question_is_read_once_and_again_when_it_was_let_go() -> None:
    stored = {"q1": {"a": CALL}, "q2": {"b": CALL}, "q3": {}}
    read: list[str] = []

    def calls_of(question_id: str) -> dict[str, Call]:
        read.append(question_id)
        return stored[question_id]

    calls = StoredCalls(calls_of, questions=2)
    assert calls.holds("q1", "a")
    assert calls.take("q1", "a") == CALL
    assert calls.take("q1", "a") is None, "kept in memory until it is taken"
    assert calls.holds("q1", "a")
    assert not calls.holds("q1", "b")
    assert calls.holds("q2", "b")
    assert read == ["q1", "q2"]
    assert not calls.holds("q3", "a")  # q1 is let go
    stored["q1"]["c"] = CALL
    assert not calls.add("q1", "c"), "of a question that was let go nothing was known"
    assert calls.holds("q1", "c")
    assert read == ["q1", "q2", "q3", "q1"]
    assert not calls.add("q1", "c")
    assert calls.add("q1", "d")


def test_a_call_stored_while_its_question_is_read_is_not_missed() -> None:
    def calls_of(question_id: str) -> dict[str, Call]:
        # The writing thread, just after the rows were read.
        assert not calls.add(question_id, "new"), "it may well have been there before"
        return {"old": CALL}

    calls = StoredCalls(calls_of)
    assert calls.holds("q1", "new")
