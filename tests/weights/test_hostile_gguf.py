"""Damaged GGUF files are refused with a readable message."""

import struct
from pathlib import Path

import pytest
from strange_files import pipe

from branchwise.base.errors import ConfigError
from branchwise.weights.gguf import open_gguf
from branchwise.weights.policies import packaged_gguf, tokenizer_of

FILES = {
    "empty": b"",
    "text": b"Dear friend\n" * 10,
    "cut off": b"GGUF" + struct.pack("<IQ", 3, 0),
    "another version": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "more values than bytes": b"GGUF" + struct.pack("<IQQ", 3, 0, 1000),
    "more tensors than bytes": b"GGUF" + struct.pack("<IQQ", 3, 1000, 0),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_damaged_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"policy\.gguf: cannot be read as GGUF"):
        open_gguf(path)
    with pytest.raises(ConfigError, match=r"policy\.gguf: cannot be (loaded|read as GGUF)"):
        tokenizer_of(path)


def test_a_gguf_with_truncated_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.gguf"
    path.write_bytes(packaged_gguf().read_bytes()[:-1000])
    with pytest.raises(ConfigError, match="cannot be read as GGUF"):
        open_gguf(path)


def test_a_pipe_instead_of_a_gguf_is_refused(tmp_path: Path) -> None:
    pipe(tmp_path / "policy.gguf", tmp_path / "outside")
    with pytest.raises(ConfigError, match="is a pipe"):
        open_gguf(tmp_path / "policy.gguf")
