"""Describes the differences between two sets of settings."""

from collections.abc import Mapping
from typing import Any


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted name."""
    if not isinstance(value, dict) or not value:
        return {at: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found.update(flat(inner, f"{at}.{key}" if at else str(key)))
    return found


def diff_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a line with both values for each name that differs; a missing value is None."""
    return [
        f"  {key}: was {old.get(key)!r}, now {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
