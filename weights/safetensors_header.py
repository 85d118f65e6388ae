"""What a safetensors file says it holds, checked against its size before a library maps it."""

from math import prod
from pathlib import Path
from typing import Any

from storage.enclosed import open_named
from storage.errors import ConfigError
from storage.plain_json import as_object, parse_json

Shape = tuple[int, ...]

_LONGEST = 100 << 20
"""Bytes of a header; the format's own limit."""
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2}
_BYTES |= {"BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}


def tensor_shapes(path: Path) -> dict[str, Shape]:
    """Names and shapes of the tensors.

    Raises:
        ConfigError: the file is missing, no regular file, torn, or not safetensors.
    """
    try:
        with open_named(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_LONGEST, size - 8):
                raise ValueError(f"its header is longer than its {size:,} bytes")
            header = as_object(parse_json(file.read(length)))
        return _shapes(header, size - 8 - length)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as safetensors ({error}); copy it again from where it comes"
        ) from error


def _shapes(header: dict[str, Any], room: int) -> dict[str, Shape]:
    """Shapes of the tensors that a header lists in the `room` bytes behind it.

    Raises:
        ValueError: one does not lie there whole.
    """
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        try:
            begin, end = about["data_offsets"]
            shape, width = tuple(about["shape"]), _BYTES.get(about["dtype"])
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{name!r} has no type, shape and place") from None
        if not whole or not begin <= end <= room:
            raise ValueError(f"{name!r} does not lie inside the file, which may be cut off")
        if width is not None and prod(shape) * width != end - begin:
            raise ValueError(f"{name!r} has another size than its shape {shape}")
        found[name] = shape
    return found
