"""Ledger rows that changed after they were stored: detected, never used, never regenerated."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import a_call

from branchwise.base.errors import StorageError
from branchwise.storage.ledger import Ledger, drop_damaged
from branchwise.storage.ledger_check import LEDGER_VERSION, check
from branchwise.storage.ledger_rows import CALL_COLUMNS, Call, checksum, packed, sound, unpacked

CALL = a_call(
    text="<answer>Lyon</answer>",
    prompt_ids=packed("i", [1, 49_151, 2]),
    token_ids=packed("i", [30, 2**31 - 1]),
    logprobs=packed("f", [-0.25, -9999.0]),
)


async def stored(path: Path, *calls: Call) -> Path:
    with Ledger(path) as ledger:
        for call in calls:
            await ledger.put(call)
    return path


def changed(path: Path, sql: str, *values: Any) -> None:
    """Changes one stored row with plain SQL."""
    with closing(sqlite3.connect(path)) as ledger, ledger:
        assert ledger.execute(sql, values).rowcount == 1


def flipped(value: Any) -> Any:
    """Returns a value with one bit flipped; "x" for an empty text or None."""
    if isinstance(value, str):
        return chr(ord(value[0]) ^ 1) + value[1:] if value else "x"
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    return "x" if value is None else value + 1


VALUES = st.lists(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    max_size=4,
)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=9)
LOGPROBS = st.lists(st.floats(-9999, 0, width=32), max_size=9)


@given(VALUES, VALUES)
def test_different_values_have_different_checksums(one: list[Any], other: list[Any]) -> None:
    if list(map(repr, one)) != list(map(repr, other)):
        assert checksum(one) != checksum(other)
    assert sound([*one, checksum(one)])


@settings(max_examples=25)
@given(prompt=IDS, ids=st.none() | IDS, logprobs=st.none() | LOGPROBS, bit=st.integers(0))
def test_packed_tokens_round_trip_and_their_flipped_bits_are_detected(
    prompt: list[int], ids: list[int] | None, logprobs: list[float] | None, bit: int
) -> None:
    call = replace(
        CALL,
        prompt_ids=packed("i", prompt),
        token_ids=packed("i", ids),
        logprobs=packed("f", logprobs),
    )
    with TemporaryDirectory() as folder:
        path = asyncio.run(stored(Path(folder) / "l", call))
        with Ledger(path) as ledger:
            kept = ledger.get_for_question("q1", "k1")
        assert kept == call
        assert unpacked("i", kept.prompt_ids) == tuple(prompt)
        assert unpacked("i", kept.token_ids) == (None if ids is None else tuple(ids))
        assert unpacked("f", kept.logprobs) == (None if logprobs is None else tuple(logprobs))
        for column in ("prompt_ids", "token_ids", "logprobs"):
            if blob := getattr(call, column):
                place = bit % (8 * len(blob))
                broken = bytearray(blob)
                broken[place // 8] ^= 1 << place % 8
                changed(path, f"UPDATE calls SET {column} = ?", bytes(broken))
                assert [row.table for row in check(path).damaged] == ["calls"]
                changed(path, f"UPDATE calls SET {column} = ?", blob)
        assert check(path).whole


async def test_a_change_in_any_column_is_detected(tmp_path: Path) -> None:
    path = await stored(tmp_path / "l", CALL, replace(CALL, key="k2", path="tree/1"))
    for column in CALL_COLUMNS:
        value = flipped(getattr(CALL, column))
        changed(path, f"UPDATE calls SET {column} = ? WHERE path <> 'tree/1'", value)
        found = check(path)
        assert (found.rows, len(found.damaged), found.faults) == (2, 1, ()), column
        question = value if column == "question_id" else "q1"
        with Ledger(path) as ledger, pytest.raises(StorageError) as told:
            ledger.get_for_question(question, "k1")
        assert str(path) in str(told.value)
        assert repr(question) in str(told.value)
        assert repr(value if column == "path" else "tree/0") in str(told.value)
        assert "--drop-damaged" in str(told.value)
        changed(path, f"UPDATE calls SET {column} = ? WHERE key <> 'k2'", getattr(CALL, column))


async def test_an_intact_row_is_used_despite_damage_to_another_question(tmp_path: Path) -> None:
    other = replace(CALL, key="k2", question_id="q2")
    path = await stored(tmp_path / "l", CALL, other)
    changed(path, "UPDATE calls SET text = 'x' WHERE key = 'k1'")
    with Ledger(path) as ledger:
        assert ledger.get_for_question("q2", "k2") == other
        with pytest.raises(StorageError, match="call 'tree/0' of question 'q1'"):
            ledger.get("k1")


async def test_invalid_utf8_or_changed_text_is_damage(tmp_path: Path) -> None:
    path = await stored(tmp_path / "l", CALL)
    for odd in (b"\xff\xfe", 7):
        changed(path, "UPDATE calls SET text = CAST(? AS TEXT)", odd)
        assert len(check(path).damaged) == 1
        with (
            Ledger(path) as ledger,
            pytest.raises(StorageError, match=r"Restore it|--drop-damaged"),
        ):
            ledger.get_for_question("q1", "k1")


async def test_a_reply_stored_twice_keeps_the_first_and_is_not_damage(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.get_for_question("q1", "k1") is None
        await ledger.put(CALL)
        await ledger.put(replace(CALL, text="another"))  # as after a cancelled task
        assert ledger.get_for_question("q1", "k1") == CALL


async def test_replacing_an_error_also_replaces_its_checksum(tmp_path: Path) -> None:
    path = await stored(tmp_path / "l", replace(CALL, error="it broke"), CALL)
    assert check(path).whole
    with Ledger(path) as ledger:
        assert ledger.get_for_question("q1", "k1") == CALL


def test_engine_capabilities_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        ledger.note_engine("d", "{}")
    assert check(path).whole
    changed(path, "UPDATE engines SET capabilities = '[]'")
    with Ledger(path) as ledger, pytest.raises(StorageError, match="engine d"):
        ledger.engine_capabilities("d")
    assert len(check(path).damaged) == 1
    drop_damaged(path, check(path).damaged)
    assert check(path).whole


OTHERS = [replace(CALL, key=f"other-{i:04}", path=f"tree/{i}") for i in range(50)]


async def test_calls_whose_damaged_keys_became_equal_can_be_dropped(tmp_path: Path) -> None:
    """The index still has the old keys, so SQLite accepts the rows but cannot rebuild it."""
    path = await stored(tmp_path / "l", *OTHERS[:3])
    content = path.read_bytes()
    # The first copy of a key in the file is in a page of the table or of the index.
    for place in (i for i in range(len(content)) if content.startswith(b"other-0001", i)):
        broken = bytearray(content)
        broken[place : place + 10] = b"other-0002"
        path.write_bytes(broken)
        assert not check(path).whole
        drop_damaged(path, check(path).damaged)
        assert check(path).whole
        with Ledger(path) as ledger:
            assert ledger.get("other-0000") == OTHERS[0]
            assert ledger.get("other-0002") == OTHERS[2]


@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX calls_by_question",
        "DROP TABLE engines",
        "ALTER TABLE calls RENAME COLUMN text TO tex",
        "ALTER TABLE engines ADD COLUMN more TEXT",
    ],
)
async def test_a_damaged_schema_is_found_before_a_call(change: str, tmp_path: Path) -> None:
    path = await stored(tmp_path / "l", CALL)
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.execute(change)
    for read in (Ledger, check):
        with pytest.raises(StorageError, match=r"tables are not those of a ledger.*Restore it"):
            read(path)


@pytest.mark.parametrize("what", ["k1-of-this-call", "<answer>Rome</answer>"])
@pytest.mark.parametrize("bit", [0, 3, 7])
async def test_a_flipped_bit_in_table_or_index_is_reported_and_can_be_dropped(
    what: str, bit: int, tmp_path: Path
) -> None:
    """Flips bits in the table's page and in its index pages, which SQLite trusts."""
    asked = replace(
        CALL, key="k1-of-this-call", question_id="q1-of-this-call", text="<answer>Rome</answer>"
    )
    whole = (await stored(tmp_path / "whole", *OTHERS, asked)).read_bytes()
    places = [i for i in range(len(whole)) if whole.startswith(what.encode(), i)]
    refused = 0
    for number, place in enumerate(places):
        path = tmp_path / f"l{number}"
        broken = bytearray(whole)
        broken[place + 2] ^= 1 << bit
        path.write_bytes(broken)
        assert not check(path).whole
        with Ledger(path) as ledger:
            try:
                known = ledger.get_for_question(asked.question_id, asked.key)
                assert known in (None, asked)
            except StorageError:
                refused += 1
        drop_damaged(path, check(path).damaged)
        with Ledger(path) as ledger:
            assert ledger.get_for_question(CALL.question_id, OTHERS[7].key) == OTHERS[7]
            assert ledger.get_for_question(asked.question_id, asked.key) in (None, asked)
        assert check(path).whole
    assert refused, "one of the places is in the row itself"


async def test_an_older_ledger_is_refused(tmp_path: Path) -> None:
    path = await stored(tmp_path / "l", CALL)
    with closing(sqlite3.connect(path)) as older:
        older.execute(f"PRAGMA user_version = {LEDGER_VERSION - 1}")
    with pytest.raises(StorageError, match=r"ledger version 5, .* move l\* and l\.stored away"):
        Ledger(path)
    with pytest.raises(StorageError, match="ledger version 5"):
        check(path)
