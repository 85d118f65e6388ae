"""JSON: unreadable text is a `ValueError` with a clear message, and every value can be written."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .safe_files import read_inside
from .text import storable_values


def parse_json(text: str | bytes, *, constants: bool = False) -> Any:
    """Parses a JSON text; lone surrogates become U+FFFD (no table can hold them).

    Args:
        text: JSON; bytes are UTF-8.
        constants: Whether to allow NaN and Infinity, which JSON lacks.

    Raises:
        ValueError: If it is not valid JSON; the message describes the error.
    """
    try:
        return storable_values(
            json.loads(
                text if isinstance(text, str) else text.decode("utf-8"),
                parse_constant=None if constants else _no_constant,
            )
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at").rstrip(": ")
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"is not JSON ({fault} at {line}character {error.colno})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def dump_json(value: Any, *, ascii_only: bool = False, compact: bool = False) -> str:
    """Returns any value as JSON on one line.

    NaN and infinities, which JSON lacks, become None.
    """
    return json.dumps(
        _finite(value),
        ensure_ascii=ascii_only,
        allow_nan=False,
        separators=(",", ":") if compact else None,
        default=str,
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def object_inside(folder: Path, name: str) -> dict[str, Any]:
    """Returns the JSON object in a file inside a folder (see `base.safe_files`).

    Raises:
        ConfigError: If it is not a regular file inside the folder, or is too large.
        OSError: If it is missing or cannot be read.
        ValueError: If it is not a JSON object.
    """
    return as_object(parse_json(read_inside(folder, name), constants=True))


def as_object(value: Any) -> dict[str, Any]:
    """Returns `value` if it is a JSON object.

    Raises:
        ValueError: If it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"is {kind_in_words(value)}, not an object")
    return value


def kind_in_words(value: Any) -> str:
    """Returns JSON's name for the type of `value`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def _no_constant(name: str) -> Any:
    raise ValueError(f"has {name}, which is not JSON")
