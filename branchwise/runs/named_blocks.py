"""Overrides that change the name in a block, such as `--set agent.protocol=arena`."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from branchwise.base import NamedBlock, named_block, shared_settings

from .recipe import Recipe


def drop_settings_of_former_names(
    values: dict[str, Any], before: Mapping[str, Any], overridden: Collection[tuple[str, ...]]
) -> None:
    """Drops the settings of a recipe that its blocks do not have in the same way under a new name.

    Settings that both names have, with the same bounds, are kept, as for an evaluated policy with
    another protocol. Those that an override gives are kept too, so that a wrong one is reported.

    Args:
        values: Unchecked recipe after the overrides; changed in place.
        before: The recipe before them.
        overridden: Paths of the overridden settings.
    """
    for path, by_name in _named_blocks(Recipe):
        block, old = _block_at(values, path), _block_at(before, path)
        if not block or not old or path in overridden:
            continue
        if block.get(by_name.key) == old.get(by_name.key):
            continue
        try:
            shared = shared_settings(by_name.class_of(block), by_name.class_of(old))
        except ValidationError:  # reported when the recipe is checked
            continue
        for key in old.keys() - shared:
            if (*path, key) not in overridden:
                block.pop(key, None)


def _named_blocks(
    model: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], NamedBlock]]:
    """Yields the path and the rule of every named block."""
    for name, field in model.model_fields.items():
        if by_name := named_block(field):
            yield (*path, name), by_name
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _named_blocks(field.annotation, (*path, name))


def _block_at(values: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, dict) else None
