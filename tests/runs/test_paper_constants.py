"""Recipes at the scale of the papers: every constant, and what the paper prints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from branchwise.base.plain_yaml import parse_yaml
from branchwise.runs.recipe_file import load_recipe

TABLE = Path(__file__).parent / "paper_constants.yaml"
RECIPES = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*-paper.yaml"))
NOT_PRINTED = "not printed"


class Row(NamedTuple):
    """A row of `TABLE`; its head describes the columns."""

    value: Any
    printed: Any
    source: str = ""
    reason: str = ""


def settings_below(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every setting with its dotted name; items of lists are numbered from 0."""
    if isinstance(values, dict):
        for name, value in values.items():
            yield from settings_below(value, f"{path}.{name}" if path else name)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from settings_below(value, f"{path}[{number}]")
    else:
        yield path, values


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, Row]]:
    document = parse_yaml(TABLE.read_text(), TABLE.name)
    assert document.repeated == []
    return {
        recipe: {setting: Row(*row) for setting, row in rows.items()}
        for recipe, rows in document.value.items()
    }


def test_the_table_has_every_recipe(table: dict[str, dict[str, Row]]) -> None:
    assert set(table) == {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_setting_has_the_value_of_its_row(
    path: Path, table: dict[str, dict[str, Row]]
) -> None:
    rows = table[path.stem]
    written = dict(settings_below(parse_yaml(path.read_text(), path.name).value))
    resolved = dict(settings_below(load_recipe(path).model_dump(mode="json")))
    assert written.keys() - rows.keys() == set(), "each setting of the recipe needs a row"
    values = {name: written.get(name, resolved.get(name, "no such setting")) for name in rows}
    assert values == {name: row.value for name, row in rows.items()}


@pytest.mark.parametrize("recipe", [path.stem for path in RECIPES])
def test_a_value_that_differs_from_the_paper_has_a_reason(
    recipe: str, table: dict[str, dict[str, Row]]
) -> None:
    for setting, row in table[recipe].items():
        if row.printed != NOT_PRINTED:
            assert row.source, f"{setting}: name the section, table or equation"
        differs = row.printed not in (row.value, NOT_PRINTED)
        assert bool(row.reason) == differs, setting
