"""`branchwise settings`: every setting of a recipe, its default, its values and its meaning.

Generated from the settings classes; `docs/settings.md` is its output.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from branchwise.base import named_block
from branchwise.runs import Recipe, StageContext, StageResult

HEAD = """# Settings

All settings of a recipe (`configs/*.yaml`), by block. `mcts: {iterations: 24}` in the file is
`--set mcts.iterations=24` on the command line; `null` unsets a setting. `branchwise settings`
prints this page.
"""

_ATTRIBUTE = re.compile(r"^    ([a-z_0-9, ]+): (.*(?:\n        .*)*)", re.MULTILINE)
_KINDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any value",
}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Block:
    """Settings under one name, or under several names with the same meaning and defaults.

    Attributes:
        given: Whether the block is present if a recipe does not name it.
        name: Kind and name that decide which settings the block has, such as "protocol `arena`".
    """

    names: tuple[str, ...]
    defaults: BaseModel
    given: bool = True
    name: str = ""

    @property
    def values(self) -> dict[str, FieldInfo]:
        """Returns the settings that are not blocks."""
        fields = type(self.defaults).model_fields
        return {name: field for name, field in fields.items() if _settings_class(field) is None}


def settings_page(context: StageContext) -> StageResult:
    """Runs the stage (see module)."""
    print(page(), end="")
    return StageResult({"settings": sum(len(block.values) for block in blocks())})


def page() -> str:
    """Returns the whole page, as Markdown."""
    listed = blocks()
    sections = (_section(block, listed[:n]) for n, block in enumerate(listed) if block.values)
    return "\n".join((HEAD, *sections))


def blocks() -> list[Block]:
    """Returns all blocks, outer ones first. Blocks of one class with equal defaults are listed
    once.
    """
    listed: list[Block] = []
    for block in _walk(Block(("",), Recipe(name="run"))):
        for place, other in enumerate(listed):
            if (type(other.defaults), other.defaults) == (type(block.defaults), block.defaults):
                listed[place] = replace(
                    other, names=tuple(dict.fromkeys((*other.names, *block.names)))
                )
                break
        else:
            listed.append(block)
    return listed


def _walk(block: Block) -> Iterator[Block]:
    yield block
    for name, field in type(block.defaults).model_fields.items():
        kind, value = _settings_class(field), getattr(block.defaults, name)
        at = f"{block.names[0]}.{name}".lstrip(".")
        if by_name := named_block(field):
            names: dict[type[BaseModel], list[str]] = {}
            for key, settings in by_name.classes().items():
                names.setdefault(settings, []).append(key)
            for settings, keys in names.items():
                defaults = settings.model_validate({by_name.key: keys[0]})
                listed = ", ".join(f"`{key}`" for key in keys)
                yield from _walk(Block((at,), defaults, name=f"{by_name.kind} {listed}"))
            continue
        origin, arguments = get_origin(field.annotation), get_args(field.annotation)
        if origin is dict and _is_block(arguments[1]):
            at, kind, value = f"{at}.<name>", arguments[1], None
        if origin is tuple and _is_block(arguments[0]):
            at, kind, value = f"{at}[]", arguments[0], None
        if kind is not None:
            missing = [key for key, inner in kind.model_fields.items() if inner.is_required()]
            defaults = kind.model_construct(**dict.fromkeys(missing)) if value is None else value
            yield from _walk(Block((at,), defaults, value is not None))


def _settings_class(field: FieldInfo) -> type[BaseModel] | None:
    """Returns the class of a setting that is a block; None for a value, or for several blocks."""
    if get_origin(field.annotation) in (tuple, dict):
        return None
    return next(filter(_is_block, (field.annotation, *get_args(field.annotation))), None)


def _is_block(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseModel)


def _section(block: Block, earlier: Sequence[Block]) -> str:
    kind = type(block.defaults)
    # A block that extends an earlier one lists only the differences.
    like = [base for base in earlier if type(base.defaults) in kind.__mro__[1:]]
    base_defaults = {name: value for base in like for name, value in base.defaults}
    title = ", ".join(f"`{name}`" for name in block.names) if block.names != ("",) else "The recipe"
    title += f", {block.name}" if block.name else ""
    meanings, defaults = attribute_docs(kind), block.defaults
    rows = [
        f"| `{name}` | {_default(field, defaults, name)} | {_values(field)} | {meanings[name]} |"
        for name, field in block.values.items()
        if name not in base_defaults or getattr(block.defaults, name) != base_defaults[name]
    ]
    about = [(inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")]
    about += ["Not set by default."] * (not block.given)
    same = " and ".join(f"`{base.names[0]}`" for base in like)
    about += [f"As {same}, except:"] * bool(like)
    table = ("| setting | default | may be | meaning |", "|---|---|---|---|", *rows)
    return "\n".join((f"## {title}", "", " ".join(about), "", *table, ""))


def attribute_docs(kind: type[BaseModel]) -> dict[str, str]:
    """Returns the attribute docs of a class and its bases, by setting."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        attributes = (inspect.getdoc(base) or "").partition("Attributes:\n")[2]
        for names, text in _ATTRIBUTE.findall(attributes):
            meaning = " ".join(text.split()).replace("|", "\\|")
            docs |= {name.strip(): meaning for name in names.split(",")}
    return docs


def _default(field: FieldInfo, defaults: BaseModel, name: str) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    return f"`{_written(getattr(defaults, name))}`"


def _written(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def _values(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(bound, name, None) is not None
    ]
    return ", ".join((_kind(field.annotation), *bounds))


def _kind(annotation: Any) -> str:
    shape = _SHAPES.get(get_origin(annotation))
    if shape is not None:
        return shape(get_args(annotation))
    if _is_block(annotation):
        return "block"
    return _KINDS[annotation]


def _union_type_name(kinds: Sequence[Any]) -> str:
    return " or ".join(dict.fromkeys(map(_kind, kinds)))


_SHAPES: dict[Any, Callable[[Sequence[Any]], str]] = {
    Literal: lambda values: ", ".join(f"`{value}`" for value in values),
    Union: _union_type_name,
    UnionType: _union_type_name,
    Annotated: lambda inner: _kind(inner[0]),
    tuple: lambda inner: f"list of {_kind(inner[0])}",
    dict: lambda inner: f"{_kind(inner[0])}: {_kind(inner[1])}",
}
"""Names of composite types."""
