"""YAML that anybody may have written, as the plain values that JSON has too.

A few lines of YAML can stand for more than any memory holds (aliases of aliases), for themselves
(an alias inside its own anchor), or for more nesting than Python follows. So a document is measured
event by event, before anything is built from it; what is built are mappings with text as keys,
lists, text, finite numbers, true, false and null.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from storage.errors import ConfigError

DEEPEST = 40
"""Levels of nesting; a recipe has five."""
LARGEST = 1 << 20
"""Characters of a document with its aliases written out, where each value counts 32 at least."""
LONGEST_NUMBER = 100
"""Characters of a number."""

_LEAST = 32
_MAPPING, _SEQUENCE, _TEXT = (f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str"))
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"

Key = tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """What a YAML text says.

    Attributes:
        value: plain values; null for an empty text.
        lines: the line of every key and list item by its path, from 1.
        repeated: keys that a mapping names again, of which the last counts, with their lines.
    """

    value: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    repeated: list[tuple[str, int]] = field(default_factory=list)


def parse_yaml(text: str, place: str) -> Document:
    """Read one YAML document.

    Args:
        text: of at most some 100 kB.
        place: where it stands, for messages: a file.

    Raises:
        ConfigError: it is not YAML, or holds what no setting can be; with the line.
    """
    try:
        _measure(text, place)
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Document()
        document = Document()
        value = _Plain(loader, place, document).value(root, ())
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {error}") from error
    return Document(value, document.lines, document.repeated)


def parse_settings(text: str, place: str) -> dict[str, Any]:
    """The mapping in a YAML document that Branchwise has written (see `parse_yaml`).

    Raises:
        ConfigError: it is not YAML, or not a mapping, or names a key twice.
    """
    document = parse_yaml(text, place)
    for key, line in document.repeated:
        raise ConfigError(f"{place}:{line}: `{key}` stands there twice")
    if not isinstance(document.value, dict):
        raise ConfigError(f"{place} holds no settings")
    return document.value


@dataclass(slots=True)
class _Begun:
    """A mapping or list whose end was not read yet."""

    anchor: str | None
    size: int = _LEAST
    height: int = 1


def _measure(text: str, place: str) -> None:
    """Refuse a document that is too deep, too large, or part of itself.

    Raises:
        ConfigError: it is.
    """
    begun: list[_Begun] = []
    known: dict[str, tuple[int, int]] = {}  # size and height of what an anchor names
    for event in yaml.parse(text, yaml.SafeLoader):
        here = f"{place}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append(_Begun(event.anchor))
            size, height = 0, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = begun.pop()
            size, height = ended.size, ended.height
            if ended.anchor is not None:
                known[ended.anchor] = (size, height)
        elif isinstance(event, yaml.ScalarEvent):
            size, height = _LEAST + len(event.value), 0
            if event.anchor is not None:
                known[event.anchor] = (size, height)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in {one.anchor for one in begun}:
                raise ConfigError(f"{here}: the alias *{event.anchor} is part of what it names")
            size, height = known.get(event.anchor or "", (_LEAST, 0))  # YAML itself refuses others
        else:
            continue
        _add(begun, size, height, here)


def _add(begun: list[_Begun], size: int, height: int, here: str) -> None:
    if len(begun) + height > DEEPEST:
        raise ConfigError(f"{here}: nested more than {DEEPEST} levels deep")
    if not begun:
        return
    begun[-1].size += size
    begun[-1].height = max(begun[-1].height, height + 1)
    if sum(one.size for one in begun) > LARGEST:
        raise ConfigError(
            f"{here}: the document holds more than settings ever do, with its aliases written out"
        )


@dataclass(frozen=True, slots=True)
class _Plain:
    """Makes plain values of nodes; `document` takes their lines."""

    loader: yaml.SafeLoader
    place: str
    document: Document
    merged: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, at: Key) -> Any:
        """The value of a node.

        Raises:
            ConfigError: it is none that a setting can have.
        """
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
            return {key: self.value(inner, (*at, key)) for key, inner in self._pairs(node, at)}
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE:
            return [self._item(inner, (*at, str(n))) for n, inner in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise self._fault(node, f"has the tag {node.tag}, which no setting has")

    def _item(self, node: yaml.Node, at: Key) -> Any:
        self.document.lines[at] = node.start_mark.line + 1
        return self.value(node, at)

    def _pairs(self, node: yaml.MappingNode, at: Key) -> Iterator[tuple[str, yaml.Node]]:
        if id(node) not in self.merged:  # an alias leads here again
            self._check_keys(node, at)
            self.merged.add(id(node))
            # What `<<` merges then comes first, so that the mapping's own keys replace it.
            self.loader.flatten_mapping(node)
        for key, inner in node.value:
            self.document.lines[(*at, str(key.value))] = key.start_mark.line + 1
            yield str(key.value), inner

    def _check_keys(self, node: yaml.MappingNode, at: Key) -> None:
        named: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode) or not isinstance(self._scalar(key), str):
                raise self._fault(key, "is a key that is not text; put it in quotes")
            if key.value in named:
                place = ".".join((*at, key.value))
                self.document.repeated.append((place, key.start_mark.line + 1))
            named.add(key.value)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag == _TEXT:
            return node.value
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise self._fault(node, f"is a number of {len(node.value)} characters, too long")
        try:
            found = self.loader.construct_object(node)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
            raise self._fault(node, f"{node.value!r} cannot be read as {node.tag}") from error
        if found is None or isinstance(found, str | bool | int | float):
            return found
        raise self._fault(node, f"{node.value} is a {type(found).__name__}; put it in quotes")

    def _fault(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(f"{self.place}:{node.start_mark.line + 1}: {what}")
