"""A recipe's file: one YAML, checked whole before anything loads.

This module reads the file, applies `--set`, and names every mistake at once with its line and the
nearest valid key.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipelines.contradictions import contradictions
from pipelines.recipe import Recipe
from storage.errors import ConfigError


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `--set a.b=value` overrides.

    Raises:
        ConfigError: naming every mistake, its file and line, and what to do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the recipe: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    try:
        root = yaml.compose(text)
        values: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of settings, such as `name: mine`")
    problems = [f"{path}:{line}: `{key}` stands there twice" for key, line in _repeated(root)]
    problems += [p for p in (_override(values, item) for item in overrides) if p]
    recipe, faults = _validated(values)
    lines = dict(_lines(root))
    set_here = {tuple(item.partition("=")[0].split(".")) for item in overrides}
    problems += [_explain(path, lines, set_here, fault) for fault in faults]
    unsound = {str(fault["loc"][0]) for fault in faults}
    problems += [f"{path}: {problem}" for problem in contradictions(recipe, unsound)]
    if problems:
        raise ConfigError("\n".join(problems))
    return recipe


def _validated(values: dict[str, Any]) -> tuple[Recipe, list[dict[str, Any]]]:
    """The recipe and what is wrong with it; blocks at fault have their defaults."""
    try:
        return Recipe.model_validate(values), []
    except ValidationError as error:
        faults: list[dict[str, Any]] = [dict(fault) for fault in error.errors()]
    unsound = {fault["loc"][0] for fault in faults}
    sound = {
        name: values[name] for name in Recipe.model_fields.keys() & values if name not in unsound
    }
    return Recipe.model_validate({"name": "unnamed", **sound}), faults


def _override(values: dict[str, Any], item: str) -> str | None:
    """Apply one `a.b=value` in place; returns what is wrong with it, if anything."""
    key, equals, raw = item.partition("=")
    if not equals or not key:
        return f"--set {item}: write it as --set section.key=value"
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        return f"--set {item}: the value is not valid YAML; quote it"
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            inner = {}
        values[section] = inner = dict(inner)
        values = inner
    values[last] = value
    return None


def _lines(node: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every key path of a YAML document with its line, from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*at, str(index))
            yield here, value.start_mark.line + 1
            yield from _lines(value, here)


def _repeated(root: Any) -> list[tuple[str, int]]:
    """Keys that a mapping names again, of which YAML would silently take the last."""
    seen: set[tuple[str, ...]] = set()
    again = []
    for key, line in _lines(root):
        if key in seen:
            again.append((".".join(key), line))
        seen.add(key)
    return again


def _explain(
    path: Path,
    lines: dict[tuple[str, ...], int],
    set_here: set[tuple[str, ...]],
    error: dict[str, Any],
) -> str:
    location = tuple(str(part) for part in error["loc"])
    known = next((location[:n] for n in range(len(location), 0, -1) if location[:n] in lines), ())
    place = f"{path}:{lines[known]}" if known else str(path)
    overriding = [k for k in set_here if location[: len(k)] == k or k[: len(location)] == location]
    if overriding:
        place = f"--set {'.'.join(min(overriding))}"
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _valid_keys(location[:-1]), n=1, cutoff=0.5)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"{place}: `{key}` is not a setting{hint}"
    if error["type"] == "missing":
        return f"{path}: `{key}` is missing"
    return f"{place}: `{key}`: {error['msg']} (given: {_given(error['input'])})"


def _given(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no integer of thousands of digits, such as a hexadecimal one
        return "a number too long to show"


def _valid_keys(section: Sequence[str]) -> list[str]:
    """Names of the settings in a section of the recipe."""
    model: type[BaseModel] = Recipe
    for name in section:
        if name.isdigit():
            continue
        field = model.model_fields.get(name)
        found = _models_in(field.annotation) if field else []
        if not found:
            return []
        model = found[0]
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for argument in arguments for model in _models_in(argument)]
