"""Reads a recipe file: one YAML document, checked completely before anything loads.

Applies `--set`, and reports all mistakes at once, each with its line and the nearest valid key.
Files of questions and passages may be relative to the recipe's folder.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from branchwise.agent import AGENT_BLOCK
from branchwise.base import (
    REDACTED,
    ConfigError,
    did_you_mean,
    named_block,
    names_secret,
    parse_yaml,
    read_named,
    redacted_setting,
    terminal_safe,
)
from branchwise.evaluation import EvaluatedPolicy

from .named_blocks import drop_settings_of_former_names
from .plugins import load_plugins
from .recipe import Recipe
from .recipe_checks import find_conflicts
from .record import CONFIG, PROVENANCE

_MAY_HOLD_KEYS = frozenset({"api_key_env", "base_url", "identity", "server_args", "url"})
"""Settings whose value messages do not repeat, because users put keys there by mistake."""
RECIPE_BYTES = 256 << 10
"""Largest size of a recipe; a file with all settings and comments has a twentieth of it."""
_SHOWN = 200
"""Characters of a wrong value that a message repeats."""
SHIPPED_RECIPES = Path(__file__).resolve().parent.parent / "recipes"
"""Folder of the recipes that can be named without a path."""
DEFAULT_RECIPE = SHIPPED_RECIPES / "atlas.yaml"
"""The recipe if neither a file, nor a name, nor an existing run gives one."""

Overrides = Sequence[str] | Mapping[str, Any]
"""Changes of settings: the texts of `--set a.b=value`, or values by dotted name."""
_Key = tuple[str, ...]


def recipe_path(name_or_path: str | Path) -> Path:
    """Returns the path of a recipe: a file, or else the shipped recipe of this name.

    Raises:
        ConfigError: If it is a bare name, but neither a file nor a shipped recipe.
    """
    path = Path(name_or_path)
    is_bare = path.name == str(path) and not path.suffix
    if not is_bare or (os.access(path, os.F_OK) and not path.is_dir()):
        return path
    shipped = {file.stem: file for file in SHIPPED_RECIPES.glob("*.yaml")}
    if path.name in shipped:
        return shipped[path.name]
    name = terminal_safe(path.name)
    raise ConfigError(
        f"{name}: no such recipe file, and no shipped recipe has this name"
        f"{did_you_mean(path.name, shipped)}"
    )


def load_recipe(path: Path, overrides: Overrides = ()) -> Recipe:
    """Reads a recipe and applies overrides.

    Raises:
        ConfigError: With every mistake, its file and line, and advice.
    """
    recipe, problems, unsound = _read(path, overrides)
    problems += [f"{path}: {problem}" for problem in find_conflicts(recipe, unsound)]
    if problems:
        raise ConfigError("\n".join(map(terminal_safe, problems)))
    return recipe


def load_recipe_leniently(path: Path, overrides: Overrides = ()) -> Recipe:
    """Reads a recipe leniently, under any installation; faulty blocks get their defaults.

    Raises:
        ConfigError: If the file cannot be read, or is not a YAML mapping.
    """
    return _read(path, overrides)[0]


def _read(path: Path, overrides: Overrides) -> tuple[Recipe, list[str], set[str]]:
    load_plugins()
    document = parse_yaml(_text_of(path), str(path))
    values = document.value
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of settings, such as `name: mine`")
    problems = [
        f"{path}:{line}: `{key}` is repeated; remove one" for key, line in document.repeated
    ]
    _resolve_data_files(path, values)
    before = dict(values)
    overridden, rejected = _override(values, overrides)
    drop_settings_of_former_names(values, before, overridden)
    recipe, faults = _validated(values)
    problems += rejected
    problems += [_explain(path, document.lines, values, overridden, fault) for fault in faults]
    return recipe, problems, {str(fault["loc"][0]) for fault in faults}


def _text_of(path: Path) -> str:
    try:
        return read_named(path, RECIPE_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the recipe: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _resolve_data_files(recipe: Path, values: dict[str, Any]) -> None:
    """Replaces data files of an unchecked recipe that are in its folder by their full paths.

    A run's own `config.yaml` holds resolved paths, and folders next to it, such as `trees/`, are
    not a corpus.
    """
    if recipe.name == CONFIG and (recipe.parent / PROVENANCE).exists():
        return
    for block in _data_blocks(values):
        if "questions" in block and block.get("source") != "hub":
            block["questions"] = _resolved(recipe, block["questions"])
        if isinstance(block.get("corpus"), list):
            block["corpus"] = [_resolved(recipe, given) for given in block["corpus"]]
        elif "corpus" in block:
            block["corpus"] = _resolved(recipe, block["corpus"])


def _data_blocks(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the blocks of an unchecked recipe that may name files of questions or passages."""
    blocks = [_inside(values, "data"), _inside(values, "evaluation", "set")]
    start = "training", "warm_start"
    mixes = ("data", "mix"), ("evaluation", "mix"), (*start, "sets"), (*start, "reading", "sets")
    for mix in mixes:
        listed = _inside(values, *mix)
        blocks += listed if isinstance(listed, list) else []
    yield from (block for block in blocks if isinstance(block, dict))


def _inside(values: Any, *keys: str) -> Any:
    """Returns the value at a path of keys; None if there is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _resolved(recipe: Path, given: Any) -> Any:
    """Returns the file's path in the recipe's folder, or `given` if it is not there.

    Also returns `given` if it is the same file seen from the current folder, so that the recipe of
    an earlier run stays equal.
    """
    if not isinstance(given, str) or not given.strip():
        return given
    inside, in_working_folder = recipe.parent / given, Path(given)
    try:
        use_given = not inside.exists() or (
            in_working_folder.exists() and in_working_folder.samefile(inside)
        )
    except (OSError, ValueError):  # not a path, or not readable; reading it reports that
        return given
    return given if use_given else str(inside)


def _validated(values: dict[str, Any]) -> tuple[Recipe, list[dict[str, Any]]]:
    """Returns the recipe and its errors; faulty blocks get their defaults."""
    try:
        return Recipe.model_validate(values).with_comparison(), []
    except ValidationError as error:
        faults: list[dict[str, Any]] = [dict(fault) for fault in error.errors()]
    unsound = {fault["loc"][0] for fault in faults}
    sound = {
        name: values[name] for name in Recipe.model_fields.keys() & values if name not in unsound
    }
    return Recipe.model_validate({"name": "unnamed", **sound}), faults


def _override(values: dict[str, Any], overrides: Overrides) -> tuple[dict[_Key, str], list[str]]:
    """Applies overrides in place, in their order.

    Returns:
        How messages name each overridden setting, and messages about overrides that are not valid.
    """
    places: dict[_Key, str] = {}
    problems: list[str] = []
    if isinstance(overrides, Mapping):
        changes = [(key, f"override {key}", value) for key, value in overrides.items()]
    else:
        changes = list(_parsed(overrides, problems))
    for key, place, value in changes:
        places[tuple(key.split("."))] = place
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        problems += filter(None, [_set(values, key, place, plain)])
    return places, problems


def _parsed(items: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yields the key, place and value of every `a.b=value`; adds messages about the others."""
    for item in items:
        key, equals, raw = item.partition("=")
        shown = redacted_setting(item)
        if not equals or not key:
            problems.append(f"--set {shown}: write it as --set section.key=value")
            continue
        try:
            yield key, f"--set {key}", parse_yaml(raw, "value").value
        except ConfigError as error:
            is_secret = shown != item
            place, reason = (shown, "") if is_secret else (key, f" ({error})")
            problems.append(f"--set {place}: cannot parse the value{reason}; quote it")


def _set(values: dict[str, Any], key: str, place: str, value: Any) -> str | None:
    """Sets one value in place; returns an error message or None."""
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        if inner is not None and not isinstance(inner, dict):
            return f"{place}: `{section}` is one value in the recipe, not a block of settings"
        values[section] = inner = dict(inner or {})
        values = inner
    values[last] = value
    return None


def _explain(
    path: Path,
    lines: dict[tuple[str, ...], int],
    values: dict[str, Any],
    overridden: Mapping[_Key, str],
    error: dict[str, Any],
) -> str:
    location = tuple(str(part) for part in error["loc"])
    longest_known = next(
        (location[:n] for n in range(len(location), 0, -1) if location[:n] in lines), ()
    )
    place = f"{path}:{lines[longest_known]}" if longest_known else str(path)
    keys = [k for k in overridden if location[: len(k)] == k or k[: len(location)] == location]
    if keys:
        place = overridden[min(keys)]
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(location[-1], _valid_keys(location[:-1], values), cutoff=0.5)
        return f"{place}: `{key}` is not a setting{_of_block(location[:-1], values)}{hint}"
    if error["type"] == "missing":
        return f"{path}: `{key}` is missing"
    return f"{place}: `{key}`: {error['msg']} (given: {_shown(location[-1], error['input'])})"


def _of_block(section: Sequence[str], values: dict[str, Any]) -> str:
    """Returns the name that a block's settings depend on, such as " of the protocol `arena`"."""
    model: type[BaseModel] = Recipe
    text = ""
    for depth, name in enumerate(section, start=1):
        field = model.model_fields.get(name)
        if field is None or not (models := _models_in(field.annotation)):
            break
        model = models[0]
        if by_name := named_block(field):
            block = _inside(values, *section[:depth]) or {}
            model = by_name.class_of(block)
            text = f" of the {by_name.kind} `{block.get(by_name.key, by_name.default)}`"
    return text


def _shown(name: str, value: Any) -> str:
    try:
        text = repr(_without_keys(name, value))
    except ValueError:  # Python does not convert integers of thousands of digits to decimal
        return "a number too long to show"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _without_keys(name: str, value: Any) -> Any:
    """Returns the given value of a setting with possible keys removed."""
    if names_secret(name) or name in _MAY_HOLD_KEYS:
        return REDACTED
    if isinstance(value, dict):
        return {key: _without_keys(str(key), inner) for key, inner in value.items()}
    return value


def _valid_keys(section: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Returns the names of the settings in a section of a recipe with these values."""
    model: type[BaseModel] = Recipe
    block: Any = values
    for name in section:
        block = _inside(block, name)
        if name not in model.model_fields:
            continue  # an entry's number or a policy's name
        field = model.model_fields[name]
        if model is EvaluatedPolicy and name == "agent":
            model = AGENT_BLOCK.class_of({**(_inside(values, "agent") or {}), **block})
            continue
        models = _models_in(field.annotation)
        if not models:
            return []
        by_name = named_block(field)
        model = by_name.class_of(block) if by_name and isinstance(block, dict) else models[0]
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for argument in arguments for model in _models_in(argument)]
