"""Registries: who may take a name, and where an implementation comes from."""

import pytest

from branchwise.base.errors import ConfigError
from branchwise.base.registry import Registry, origin_of


def test_a_name_belongs_to_the_plugin_that_registered_it_first() -> None:
    registry: Registry[int] = Registry("number")
    registry.add("one", 1, "branchwise.base.registry")
    registry.add("two", 2, "pytest")
    registry.add("two", 22, "pytest")  # the cell of a notebook ran again
    assert dict(registry) == {"one": 1, "two": 22}
    for name in ("one", "two"):
        with pytest.raises(ConfigError, match=f"the number `{name}` exists already"):
            registry.add(name, 3, "hypothesis")
    with pytest.raises(ConfigError, match="exists already"):
        registry.add("one", 3, "branchwise.base.text")
    assert (registry.origin("one"), registry.origin("two")) == (None, origin_of("pytest"))


def test_names_are_listed_in_order_and_unknown_ones_are_explained() -> None:
    registry: Registry[int] = Registry("number")
    for name in ("one", "four", "three"):
        registry.add(name, 0, "pytest")
    assert list(registry) == ["four", "one", "three"]
    assert registry.unknown_message("thre") == "no such number; did you mean `three`?"
    assert registry.unknown_message("x") == "no such number; use one of four, one, three"
