"""The header of a GGUF file, walked through: whether everything that it announces is there.

The readers of other packages take its counts at their word; one that says 2⁶⁰ keeps them busy.
"""

import struct
from pathlib import Path
from typing import BinaryIO

from storage.enclosed import open_named
from storage.errors import ConfigError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_VERSIONS = (2, 3)


def refuse_torn(path: Path) -> None:
    """Check counts and lengths of a header against the size of its file.

    Raises:
        ConfigError: it is not GGUF, not a regular file, or ends too early.
    """
    try:
        with open_named(path) as file:
            left = file.seek(0, 2)
            file.seek(0)
            _Header(file, left).walk()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a readable GGUF file: {error}; copy it again from where it comes"
        ) from error


class _Header:
    """Reads on through a header, never past the end of the file."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file, self._left = file, left

    def walk(self) -> None:
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, tensors, values = struct.unpack("<IQQ", self._bytes(20))
        if version not in _VERSIONS:
            raise ValueError(f"its version {version} is not known")
        for _ in range(self._count(values, least=13)):
            self._string()
            self._value(self._number(4))
        for _ in range(self._count(tensors, least=24)):
            self._string()
            dimensions = self._number(4)
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"a tensor has {dimensions} dimensions")
            self._bytes(8 * dimensions + 12)  # their sizes, the type and the place

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            inner, length = self._number(4), self._number(8)
            if inner == _STRING:
                for _ in range(self._count(length, least=8)):
                    self._string()
            else:
                self._skip(self._size(inner) * length)
        else:
            self._skip(self._size(kind))

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"a value has the unknown type {kind}")
        return _SIZES[kind]

    def _string(self) -> None:
        self._skip(self._number(8))

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "little")

    def _count(self, announced: int, least: int) -> int:
        """A count of things that have `least` bytes each."""
        if announced * least > self._left:
            raise ValueError("it announces more than it holds; it may be cut off")
        return announced

    def _bytes(self, size: int) -> bytes:
        self._take(size)
        return self._file.read(size)

    def _skip(self, size: int) -> None:
        self._take(size)
        self._file.seek(size, 1)

    def _take(self, size: int) -> None:
        if size > self._left:
            raise ValueError("it announces more than it holds; it may be cut off")
        self._left -= size
