"""Registers an implementation for the time of a test."""

from typing import Any

import pytest

from branchwise.base.registry import Registry


def registered(patch: pytest.MonkeyPatch, registry: Registry[Any], name: str, entry: Any) -> None:
    """Registers `entry` until the test ends, as a plug-in of the distribution `tests 1`."""
    list(registry)  # our own first
    patch.setitem(registry._entries, name, entry)
    patch.setitem(registry._origins, name, "tests 1")
