"""The vector cache: read back unchanged, shared by processes, never read from damaged data."""

import multiprocessing
import os
import signal
import sqlite3
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random

import numpy as np
import pytest

from base.errors import StorageError
from weights.vectors import Vector, VectorCache


def vectors(n: int, first: int = 0) -> dict[bytes, Vector]:
    return {
        f"key {i}".encode(): np.arange(i, i + 50, dtype=np.float32) / np.float32(3)
        for i in range(first, first + n)
    }


def cached(path: Path, keys: list[bytes], said: list[str] | None = None) -> dict[bytes, Vector]:
    with VectorCache(path, (said if said is not None else []).append) as cache:
        return cache.get(keys)


def same(one: dict[bytes, Vector], other: dict[bytes, Vector]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def test_stored_vectors_are_found_by_their_keys_only(tmp_path: Path) -> None:
    path, put = tmp_path / "deep" / "one.sqlite", vectors(1200)
    with VectorCache(path, print) as cache:
        cache.put(put)
    assert same(cached(path, [*put, b"never"]), put)


@pytest.mark.parametrize("harm", ["cut", "text", "middle"])
def test_a_damaged_database_is_logged_and_recreated(tmp_path: Path, harm: str) -> None:
    path, put = tmp_path / "one.sqlite", vectors(300)
    with VectorCache(path, print) as cache:
        cache.put(put)
    content = path.read_bytes()
    middle = content[:4096] + b"\xff" * (len(content) - 8192) + content[-4096:]
    path.write_bytes({"cut": content[:5000], "text": b"no database" * 99, "middle": middle}[harm])
    said: list[str] = []
    assert cached(path, list(put), said) == {}
    assert ["damaged" in line for line in said] == [True]
    with VectorCache(path, said.append) as cache:
        cache.put(put)
        assert same(cache.get(list(put)), put)
    assert len(said) == 1


def test_a_vector_that_changed_on_disk_counts_as_missing(tmp_path: Path) -> None:
    path, put = tmp_path / "one.sqlite", vectors(3)
    with VectorCache(path, print) as cache:
        cache.put(put)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE vectors SET vector = zeroblob(200) WHERE key = ?", (b"key 1",))
    connection.close()
    said: list[str] = []
    assert sorted(cached(path, list(put), said)) == [b"key 0", b"key 2"]
    assert "recomputing 1 damaged vectors" in said[0]


def test_flipped_bits_never_change_a_returned_vector(tmp_path: Path) -> None:
    """Half of the flips hit the header and the schema table, where a bit matters most."""
    path, put, random = tmp_path / "one.sqlite", vectors(40), Random(3)
    with VectorCache(path, print) as cache:
        cache.put(put)
    whole = path.read_bytes()
    returned = 0
    for n in range(200):
        path.write_bytes(whole)
        flipped_within(path, random, 600 if n % 2 else len(whole))
        with suppress(StorageError), VectorCache(path, lambda _: None) as cache:
            found = cache.get(list(put))
            assert same(found, {key: put[key] for key in found})
            returned += len(found)
    assert returned > 100 * len(put), "most flips leave most vectors readable"


def flipped_within(path: Path, random: Random, end: int) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 3])):
        place = random.randrange(8 * end)
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def _put_for_ever(path: Path, first: int, begun: Event) -> None:
    with VectorCache(path, print) as cache:
        for n in range(10**6):
            cache.put(vectors(20, first + 20 * n))
            begun.set()


def test_killed_writers_leave_only_whole_batches(tmp_path: Path) -> None:
    path, spawn = tmp_path / "one.sqlite", multiprocessing.get_context("fork")
    begun = [spawn.Event() for _ in range(2)]
    writers = [
        spawn.Process(target=_put_for_ever, args=(path, 10**6 * n, begun[n])) for n in range(2)
    ]
    for writer, event in zip(writers, begun, strict=True):
        writer.start()
        assert event.wait(60)
    for writer in writers:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    with VectorCache(path, pytest.fail) as cache:
        cache.put(vectors(20, 5 * 10**6))
        for n in (0, 1, 5):
            first = vectors(20, 10**6 * n)
            assert same(cache.get(list(first)), first)
    with sqlite3.connect(path) as connection:
        (rows,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
    connection.close()
    assert rows % 20 == 0, "a batch is stored whole or not at all"


def test_an_unwritable_folder_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        VectorCache(tmp_path / "file" / "one.sqlite", print)
