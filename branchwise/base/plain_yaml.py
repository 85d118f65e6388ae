"""YAML from untrusted sources, restricted to plain values.

The result has only mappings with text keys, lists, text, numbers, true, false and None. Anchors and
aliases are refused: with them, a few lines can refer to themselves or expand beyond any memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from .errors import ConfigError

_MAPPING, _SEQUENCE, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str"))

Key = tuple[str, ...]

MOST_LEVELS = 100
"""Most levels of nested lists and mappings."""


@dataclass(frozen=True)
class Document:
    """The content of a YAML text.

    Attributes:
        value: Plain values; None for an empty text.
        lines: Line number of every key and list item by its path, from 1.
        repeated: Repeated keys of a mapping with their lines; the last one counts.
    """

    value: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    repeated: list[tuple[str, int]] = field(default_factory=list)


def parse_yaml(text: str, place: str) -> Document:
    """Reads one YAML document.

    Args:
        text: YAML of at most about 100 kB.

    Raises:
        ConfigError: If it is not YAML, or holds a value that no setting can have; names the line.
    """
    try:
        _check_structure(text, place)
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Document()
        document = Document()
        value = _Plain(loader, place, document).value(root, ())
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: is nested too deeply") from error
    return Document(value, document.lines, document.repeated)


def parse_settings(text: str, place: str) -> dict[str, Any]:
    """Returns the mapping in a YAML document that Branchwise has written (see `parse_yaml`).

    Raises:
        ConfigError: If it is not YAML, is not a mapping, or repeats a key.
    """
    document = parse_yaml(text, place)
    for key, line in document.repeated:
        raise ConfigError(f"{place}:{line}: `{key}` is repeated; remove one")
    if not isinstance(document.value, dict):
        raise ConfigError(f"{place} is not a mapping of settings")
    return document.value


def _check_structure(text: str, place: str) -> None:
    """Rejects anchors, aliases and deep nesting before anything is built.

    Raises:
        ConfigError: If the document has an anchor or an alias, or more than `MOST_LEVELS` levels,
            which would take the scanner minutes.
    """
    level = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent)
        level -= isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise ConfigError(f"{place}: is nested too deeply")
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ConfigError(
                f"{place}:{line}: `{event.anchor}` is an anchor or alias (& "
                "or *), which settings do not support. Write the value out, or quote text that "
                "starts with & or *"
            )


@dataclass(frozen=True, slots=True)
class _Plain:
    """Converts nodes to plain values, and records their lines in `document`."""

    loader: yaml.SafeLoader
    place: str
    document: Document

    def value(self, node: yaml.Node, at: Key) -> Any:
        """Returns the value of a node.

        Raises:
            ConfigError: If no setting can have this value.
        """
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
            return {key: self.value(inner, (*at, key)) for key, inner in self._pairs(node, at)}
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE:
            return [self._item(inner, (*at, str(n))) for n, inner in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise self._fault(node, f"has the tag {node.tag}, which settings do not support")

    def _item(self, node: yaml.Node, at: Key) -> Any:
        self.document.lines[at] = node.start_mark.line + 1
        return self.value(node, at)

    def _pairs(self, node: yaml.MappingNode, at: Key) -> Iterator[tuple[str, yaml.Node]]:
        names: set[str] = set()
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                raise self._fault(key, "is a key that is not text; put it in quotes")
            place, line = (*at, key.value), key.start_mark.line + 1
            if key.value in names:
                self.document.repeated.append((".".join(place), line))
            names.add(key.value)
            self.document.lines[place] = line
            yield key.value, inner

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag == _TEXT:
            return node.value
        try:
            value = self.loader.construct_object(node)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
            raise self._fault(node, f"{node.value[:100]!r} cannot be read as {node.tag}") from error
        if value is None or isinstance(value, str | bool | int | float):
            return value
        raise self._fault(node, f"{node.value} is a {type(value).__name__}; put it in quotes")

    def _fault(self, node: yaml.Node, problem: str) -> ConfigError:
        return ConfigError(f"{self.place}:{node.start_mark.line + 1}: {problem}")
