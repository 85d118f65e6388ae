"""GGUF files that are damaged, or announce more than they hold: a sentence."""

import struct
from pathlib import Path

import pytest
from strange_files import pipe

from storage.errors import ConfigError
from weights.gguf import open_gguf
from weights.policy_files import load_tokenizer, packaged_gguf

HUGE = 1 << 60


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def header(tensors: int, values: int, *rest: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + b"".join(rest)


def value(kind: int, content: bytes) -> bytes:
    return text("some.key") + struct.pack("<I", kind) + content


def tensor(dimensions: int, *sizes: int, kind: int = 0, at: int = 0) -> bytes:
    return text("weight") + struct.pack(f"<I{len(sizes)}QIQ", dimensions, *sizes, kind, at)


FILES = {
    "empty": b"",
    "text": b"Dear friend\n" * 10,
    "cut off": header(0, 1)[:10],
    "another version": header(0, 0, version=9),
    "more values than bytes": header(0, HUGE),
    "more tensors than bytes": header(HUGE, 0),
    "a long key": header(0, 1, struct.pack("<Q", HUGE), bytes(64)),
    "a long list of texts": header(0, 1, value(9, struct.pack("<IQ", 8, HUGE)), bytes(64)),
    "an unknown type": header(0, 1, value(99, bytes(64))),
    "many dimensions": header(1, 0, tensor(2**31), bytes(64)),
    "a tensor that is not there": header(1, 0, tensor(2, 1 << 20, 1 << 20), bytes(64)),
    "a tensor elsewhere": header(1, 0, tensor(1, 8, at=HUGE), bytes(64)),
    "sizes past all numbers": header(1, 0, tensor(2, HUGE, HUGE), bytes(64)),
    "an alignment of zero": header(
        0, 1, text("general.alignment") + struct.pack("<II", 4, 0), bytes(64)
    ),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_damaged_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"policy\.gguf: cannot be read as GGUF"):
        open_gguf(path)
    with pytest.raises(ConfigError, match=r"policy\.gguf: cannot be (loaded|read as GGUF)"):
        load_tokenizer(path)


def test_a_file_that_was_cut_off_in_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "policy.gguf"
    path.write_bytes(packaged_gguf().read_bytes()[:-1000])
    with pytest.raises(ConfigError, match="cannot be read as GGUF"):
        open_gguf(path)


def test_a_file_that_is_a_pipe(tmp_path: Path) -> None:
    pipe(tmp_path / "policy.gguf", tmp_path / "outside")
    with pytest.raises(ConfigError, match="is a pipe"):
        open_gguf(tmp_path / "policy.gguf")
