"""`docs/tables.md` describes every column with its type, and no removed column."""

import re
from pathlib import Path

import pytest

from branchwise.storage.schemas import SCHEMAS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "tables.md"


@pytest.mark.parametrize("table", sorted(SCHEMAS.keys() - {"labels"}))
def test_every_column_is_described(table: str) -> None:
    section = GUIDE.read_text(encoding="utf-8").split(f"## `{table}`")[1].split("\n## ")[0]
    columns = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    schema = [(c.name, str(c.type).replace("item: ", "")) for c in SCHEMAS[table]]
    assert [name for name, _ in schema[:2]] == ["schema_version", "run_id"]
    assert columns == schema[2:]
